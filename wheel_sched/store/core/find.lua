#!lua flags=no-writes
-- Some of the ids that carry a ref; each call goes on where the one before ended. An id may come twice. Writes nothing.
-- ARGV[3] -> ref   ARGV[4] -> cursor, "0" at the start   ARGV[5] -> how many ids at least, if there are so many
-- Answers {next cursor ("0" = finished), id, ...}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local count, cursor, reply = tonumber(ARGV[5]), ARGV[4], {}
repeat
  local step = redis.call('SSCAN', s.prefix .. 'ref:' .. ARGV[3], cursor, 'COUNT', count)
  cursor = step[1]
  for _, id in ipairs(step[2]) do reply[#reply + 1] = id end
until cursor == '0' or #reply >= count
table.insert(reply, 1, cursor)
return reply
