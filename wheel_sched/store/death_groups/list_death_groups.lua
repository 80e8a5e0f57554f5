#!lua flags=no-writes
-- One step through the death groups of the shard. A group may come in two steps. Writes nothing.
-- ARGV[3] -> cursor, "0" at the start
-- Answers {now (us), next cursor ("0" = finished), number of dead letters, key, value, ...} as in `deathgroups`.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local step = redis.call('HSCAN', s.prefix .. 'deathgroups', ARGV[3], 'COUNT', 100)
local reply = {s.us, step[1], redis.call('ZCARD', KEYS[DEAD])}
for _, text in ipairs(step[2]) do reply[#reply + 1] = text end
return reply
