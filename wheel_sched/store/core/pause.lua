#!lua flags=allow-oom
-- Pauses or resumes a topic, one bounded page a call.
-- ARGV[3] -> "pause" or "resume"   ARGV[4] -> topic
-- ARGV[5] -> pause: rank to continue from; resume: how many items earlier calls have moved
-- ARGV[6] -> resume: interval over which overdue items are spread (ms)   ARGV[7] -> resume: how many were held at first
-- Answers {moved, ARGV[5] of the next call (-1 = finished), now (us)}.
local s = begin(KEYS, ARGV)
if s.err then return s end
local topic, from = ARGV[4], tonumber(ARGV[5])
local flag, index = 'p:' .. topic, s.prefix .. 'held:paused:' .. topic
if ARGV[3] == 'pause' then
  if redis.call('HSETNX', KEYS[META], flag, ms(s.now)) == 1 then redis.call('HINCRBY', KEYS[META], 'paused', 1) end
  local place, before = KEYS[DUE], 0
  if s.ready then                      -- the ranks of `ready` follow those of `due`
    before = redis.call('ZCARD', place)
    if from >= before then place, from = s.ready, from - before else before = 0 end
  end
  local found = redis.call('ZRANGE', place, from, from + MAX_BATCH - 1, 'WITHSCORES')
  if #found == 0 then return {0, -1, s.us} end
  local ids, moved = {}, {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  local recs = redis.call('HMGET', KEYS[BODY], unpack(ids))
  for i, id in ipairs(ids) do
    if recs[i] and parse(recs[i]) == topic then
      moved[#moved + 1] = id
      put_held(s, id, tonumber(found[2 * i]), topic, 'paused')
      moves(s, topic, 'due', 'held')
    end
  end
  if #moved > 0 then redis.call('ZREM', place, unpack(moved)) end
  write(s)
  return {#moved, before + from + #ids - #moved, s.us}
end
if redis.call('HDEL', KEYS[META], flag) == 1 then
  s.paused = redis.call('HINCRBY', KEYS[META], 'paused', -1)
end
local spread, total = tonumber(ARGV[6]), math.max(tonumber(ARGV[7]), 1)
local found = redis.call('ZRANGE', index, 0, MAX_BATCH - 1, 'WITHSCORES')
if #found == 0 then return {0, -1, s.us} end
local ids = {}
for i = 1, #found, 2 do
  local id, due = found[i], tonumber(found[i + 1])
  ids[#ids + 1] = id
  if due <= s.now and spread > 0 then
    due = s.now + math.floor(spread * math.min(from + #ids - 1, total) / total)
  end
  table.insert(s.due, due) table.insert(s.due, id)
  if not s.least or due < s.least then s.least = due end
  moves(s, topic, 'held', 'due')
end
redis.call('ZREM', index, unpack(ids))
redis.call('ZREM', KEYS[HELD], unpack(ids))
redis.call('HDEL', KEYS[WHY], unpack(ids))
write(s)
return {#ids, from + #ids, s.us}
