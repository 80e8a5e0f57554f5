#!lua flags=no-writes
-- The ids that carry a ref. Writes nothing.
-- ARGV[3] -> ref   ARGV[4] -> limit
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local found = redis.call('SSCAN', s.prefix .. 'ref:' .. ARGV[3], '0', 'COUNT', ARGV[4])
local cursor, ids = found[1], found[2]
while cursor ~= '0' and #ids < tonumber(ARGV[4]) do
  found = redis.call('SSCAN', s.prefix .. 'ref:' .. ARGV[3], cursor, 'COUNT', ARGV[4])
  cursor = found[1]
  for _, id in ipairs(found[2]) do ids[#ids + 1] = id end
end
return ids
