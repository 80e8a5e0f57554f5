#!lua flags=no-writes
-- The shard's counters, and the true sizes of its sets and hashes to compare them with. Writes nothing.
-- Answers {now (us), due, leased, held, dead, bodies, dead bodies, claims, reasons, head of due, head of leased, number
-- of overdue items, field, value, ...}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local due = redis.call('ZCARD', KEYS[DUE]) + (s.ready and redis.call('ZCARD', s.ready) or 0)
local reply = {s.us, due, redis.call('ZCARD', KEYS[LEASED]), redis.call('ZCARD', KEYS[HELD]),
               redis.call('ZCARD', KEYS[DEAD]), redis.call('HLEN', KEYS[BODY]), redis.call('HLEN', KEYS[DEADBODY]),
               redis.call('HLEN', KEYS[CLAIM]), redis.call('HLEN', KEYS[WHY]),
               due_head(s), first_score(KEYS[LEASED]),
               redis.call('ZCOUNT', KEYS[DUE], '-inf', s.now) + (s.ready and redis.call('ZCOUNT', s.ready, '-inf', s.now) or 0)}
for _, text in ipairs(redis.call('HGETALL', KEYS[META])) do reply[#reply + 1] = text end
return reply
