#!lua flags=no-writes
-- One death group of the shard. Writes nothing.
-- ARGV[3] -> key of the group, as in `deathgroups`
-- Answers {now (us), value as in `deathgroups` ("" = there is no such group)}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
return {s.us, redis.call('HGET', s.prefix .. 'deathgroups', ARGV[3]) or ''}
