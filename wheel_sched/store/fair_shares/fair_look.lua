#!lua flags=no-writes
-- Reads the fair topics of a shard. Writes nothing. prelude.lua in this folder describes the Redis keys.
-- ARGV[3] -> "" = the names of the fair topics: answers {now (us), topic, ...}
--            "1" = one topic; ARGV[4] -> its name, ARGV[5] -> greatest number of keys
--            Answers {now (us), settings ("" = not fair), waiting in the queues, keys in the ring, (key, virtual time,
--            overdue, in flight, due of the first overdue one (-1 = none), cost of an id) ...} of the keys with the
--            least virtual time, then of keys that wait for a place: these have -1 as their virtual time.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local function names(name) return s.prefix .. 'fair' .. name end
if ARGV[3] == '' then return {s.us, unpack(redis.call('HKEYS', names('topics')))} end
local topic = ARGV[4]
local queue, ring = names('queue:' .. topic), names('ring:' .. topic)
local reply = {s.us, redis.call('HGET', names('topics'), topic) or '', redis.call('ZCARD', queue),
               redis.call('ZCARD', ring)}
local limit, settings = math.min(tonumber(ARGV[5]), MAX_BATCH), shares_work.settings_or_none(s, topic)
local function add_row(key, time)
  local at, least = #reply, '[' .. key .. '\0'
  local overdue = '(' .. key .. '\0' .. string.format('%016d', s.now + 1)
  local first = redis.call('ZRANGEBYLEX', queue, least, overdue, 'LIMIT', 0, 1)[1]
  reply[at + 1], reply[at + 2] = key, time
  reply[at + 3] = redis.call('ZLEXCOUNT', queue, least, overdue)
  reply[at + 4] = tonumber(redis.call('HGET', names('busy'), topic .. '\0' .. key) or '0')
  reply[at + 5] = first and tonumber(string.sub(first, #key + 2, #key + 17)) or -1
  reply[at + 6] = tonumber(redis.call('HGET', names('weights:' .. topic), key) or settings.cost)
end
local page = limit > 0 and redis.call('ZRANGE', ring, 0, limit - 1, 'WITHSCORES') or {}   -- 0, -1 would read all
for i = 1, #page, 2 do add_row(page[i], tonumber(page[i + 1])) end
if settings.cap > 0 and limit > 0 then       -- at most one page of the keys that have ids in flight
  local busy = redis.call('HSCAN', names('busy'), 0, 'COUNT', MAX_BATCH)[2]
  for i = 1, math.min(#busy, 2 * MAX_BATCH), 2 do
    local at = string.find(busy[i], '\0', 1, true)
    local key = string.sub(busy[i], at + 1)
    if string.sub(busy[i], 1, at - 1) == topic and tonumber(busy[i + 1]) >= settings.cap
       and not redis.call('ZSCORE', ring, key) then add_row(key, -1) end
  end
end
return reply
