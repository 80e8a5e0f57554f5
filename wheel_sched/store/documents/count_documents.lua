#!lua flags=no-writes
-- How many documents a collection has, without those that have expired. Writes nothing.
-- ARGV[3] -> collection
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
return redis.call('HLEN', s.prefix .. 'docs:' .. ARGV[3])
       - redis.call('ZCOUNT', s.prefix .. 'docends:' .. ARGV[3], '-inf', s.now)
