#!lua flags=no-writes
-- Reads the fair topics of a shard. Writes nothing. prelude.lua in this folder describes the Redis keys.
-- ARGV[3] -> "" = the names of the fair topics: answers {now (us), topic, ...}
--            "1" = one topic; ARGV[4] -> its name, ARGV[5] -> greatest number of keys
--            Answers {now (us), settings ("" = not fair), waiting in the queues, keys in the ring, (key, virtual time,
--            waiting, in flight) of the keys with the least virtual time ...}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local function names(name) return s.prefix .. 'fair' .. name end
if ARGV[3] == '' then return {s.us, unpack(redis.call('HKEYS', names('topics')))} end
local topic = ARGV[4]
local queue, ring = names('queue:' .. topic), names('ring:' .. topic)
local reply = {s.us, redis.call('HGET', names('topics'), topic) or '', redis.call('ZCARD', queue),
               redis.call('ZCARD', ring)}
local page = redis.call('ZRANGE', ring, 0, math.min(tonumber(ARGV[5]), MAX_BATCH) - 1, 'WITHSCORES')
for i = 1, #page, 2 do
  local at, key = #reply, page[i]
  reply[at + 1], reply[at + 2] = key, tonumber(page[i + 1])
  reply[at + 3] = redis.call('ZLEXCOUNT', queue, '[' .. key .. '\0', '(' .. key .. '\1')
  reply[at + 4] = tonumber(redis.call('HGET', names('busy'), topic .. '\0' .. key) or '0')
end
return reply
