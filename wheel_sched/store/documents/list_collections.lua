#!lua flags=no-writes
-- The names of all collections that ever had a document. Writes nothing.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
return redis.call('HKEYS', s.prefix .. 'docversions')
