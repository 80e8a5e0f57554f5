#!lua flags=allow-oom
-- Maintenance of a whole shard. While the shard is frozen, every script that writes refuses, except restore, freeze and
-- the scripts that move data. All verbs may be repeated.
-- ARGV[3] -> verb, ARGV[4..] -> its arguments:
--   look                       changes nothing
--   wake                       writes the marker with a due that no dispatcher acts on: blocked readers wake up
--   freeze <reason>            changes nothing while ids are in flight, or when the shard is frozen for another reason
--   adopt <from> <count> <paused topic, since (ms)>... <event:topic, by>...
--                              pauses these topics here too, and adds the event counts of shard <from>; a repeat
--                              for the same <from> adds nothing
--   thaw <shards>              ends the freeze: the shard count is now <shards>, and the new epoch makes every claimer
--                              read the shard again
--   drop                       deletes a frozen shard, if it holds no items
-- Answers {open claims, reason of the freeze ("" = not frozen), shards}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local verb = ARGV[3]
local claims = redis.call('ZCARD', KEYS[LEASED])
local frozen = redis.call('HGET', KEYS[META], 'frozen') or ''
local function answer() return {claims, frozen, tonumber(redis.call('HGET', KEYS[META], 'shards'))} end
if verb == 'look' then return answer() end
if verb == 'wake' then
  redis.call('XADD', KEYS[MARK], 'MAXLEN', 1, '*', 'd', '253402300799999')
  return answer()
end
if verb == 'freeze' then
  if frozen == '' and claims == 0 then
    frozen = ARGV[4]
    redis.call('HSET', KEYS[META], 'frozen', frozen)
  end
  return answer()
end
if frozen == '' and verb ~= 'thaw' then return {err = 'WSTHAWED the shard is not frozen'} end
if verb == 'adopt' then
  local count = tonumber(ARGV[5])
  for i = 1, count do
    if redis.call('HSETNX', KEYS[META], 'p:' .. ARGV[4 + 2 * i], ARGV[5 + 2 * i]) == 1 then
      redis.call('HINCRBY', KEYS[META], 'paused', 1)
    end
  end
  if ARGV[4] ~= '' and redis.call('HSETNX', KEYS[META], 'adopted:' .. ARGV[4], 1) == 1 then
    for at = 6 + 2 * count, #ARGV, 2 do
      add(s, 't:' .. ARGV[at], tonumber(ARGV[at + 1]))
    end
    write(s)
  end
elseif verb == 'thaw' then
  if redis.call('HGET', KEYS[META], 'shards') ~= ARGV[4] then
    for _, name in ipairs(reshard_keys) do redis.call('DEL', s.prefix .. name) end
  end
  redis.call('HSET', KEYS[META], 'shards', ARGV[4])
  if frozen ~= '' then
    for _, field in ipairs(redis.call('HKEYS', KEYS[META])) do
      if string.sub(field, 1, 8) == 'adopted:' then redis.call('HDEL', KEYS[META], field) end
    end
    redis.call('HDEL', KEYS[META], 'frozen')
    redis.call('HINCRBY', KEYS[META], 'epoch', 1)
    frozen = ''
    local head = due_head(s)
    if head >= 0 then redis.call('XADD', KEYS[MARK], 'MAXLEN', 1, '*', 'd', ms(head)) end
  end
elseif verb == 'drop' then
  if redis.call('EXISTS', KEYS[BODY], KEYS[DEADBODY]) > 0 then
    return {err = 'WSFILLED the shard still holds items'}
  end
  local shards = tonumber(redis.call('HGET', KEYS[META], 'shards'))
  call_all(on_drop, s)
  redis.call('DEL', unpack(KEYS))
  for _, name in ipairs(room_keys) do redis.call('DEL', s.prefix .. name) end
  return {0, '', shards}
end
return answer()
