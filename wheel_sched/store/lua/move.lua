-- Takes out of a frozen shard what has been put into another one. All verbs may be repeated.
-- ARGV[3] -> verb, ARGV[4..] -> its arguments:
--   lift <id>...               removes ids wherever they lie, as if they had never been accepted here
--   lend <key, score>...       raises attempt records (see remember.lua)
--   forget <key>...            removes attempt records
-- Answers how many ids or records changed.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
if redis.call('HEXISTS', KEYS[META], 'frozen') == 0 then return {err = 'WSTHAWED the shard is not frozen'} end
local verb, changed = ARGV[3], 0
if #ARGV - 3 > 2 * MAX_BATCH then return {err = 'WSBATCH at most ' .. MAX_BATCH .. ' items a call'} end
if verb == 'lend' then
  for at = 4, #ARGV, 2 do
    -- scores are expiry and attempts in one number: each part counts for itself
    local old, new = tonumber(redis.call('ZSCORE', KEYS[TRIES], ARGV[at]) or '0'), tonumber(ARGV[at + 1])
    local expiry = math.max(math.floor(old / 1000), math.floor(new / 1000))
    redis.call('ZADD', KEYS[TRIES], ms(expiry * 1000 + math.max(old % 1000, new % 1000)), ARGV[at])
    changed = changed + 1
  end
elseif verb == 'forget' then
  for at = 4, #ARGV do changed = changed + redis.call('ZREM', KEYS[TRIES], ARGV[at]) end
elseif verb == 'lift' then
  for at = 4, #ARGV do
    local id = ARGV[at]
    local rec = redis.call('HGET', KEYS[BODY], id)
    local state = 'dead'
    if rec then
      state = redis.call('ZREM', KEYS[DUE], id) == 1 and 'due' or 'held'
      if state == 'held' then drop_held(s, id) end
      redis.call('HDEL', KEYS[BODY], id)
      redis.call('HDEL', KEYS[LAPSED], id)
    else
      local value = redis.call('HGET', KEYS[DEADBODY], id)
      if value then
        local length, behind = string.match(value, '^(%d+):()')
        rec = string.sub(value, behind + tonumber(length))
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
end
return changed
