#!lua flags=allow-oom
-- Removes from a frozen shard the ids that another shard has now, as if this shard had never accepted them. The call
-- may be repeated.
-- ARGV[3..] -> ids
-- Answers how many ids were removed.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
if redis.call('HEXISTS', KEYS[META], 'frozen') == 0 then return {err = 'WSTHAWED the shard is not frozen'} end
local changed = 0
if #ARGV - 2 > 2 * MAX_BATCH then return TOO_MANY end
for at = 3, #ARGV do
  local id = ARGV[at]
  local rec = redis.call('HGET', KEYS[BODY], id)
  local state = 'dead'
  if rec then
    state = drop_due(s, id) and 'due' or 'held'
    if state == 'held' then drop_held(s, id) end
    redis.call('HDEL', KEYS[BODY], id)
    redis.call('HDEL', KEYS[LAPSED], id)
  else
    local value = redis.call('HGET', KEYS[DEADBODY], id)
    if value then
      rec = unearth(s, id, value, tonumber(redis.call('ZSCORE', KEYS[DEAD], id) or '0'))
      redis.call('ZREM', KEYS[DEAD], id)
      redis.call('HDEL', KEYS[DEADBODY], id)
    end
  end
  if rec then
    local topic, refs = parse(rec)
    topic = topic or ''
    if refs then refs_of(s, refs, id, 'SREM') end
    moves(s, topic, state, nil)
    add(s, 't:accepted:' .. topic, -1)
    if state == 'dead' then add(s, 't:died:' .. topic, -1) end
    changed = changed + 1
  end
end
write(s)
return changed
