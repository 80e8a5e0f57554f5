#!lua flags=no-writes
-- Documents by their ids. Writes nothing.
-- ARGV[3] -> collection   ARGV[4..] -> ids
-- Answers for each id {version, time of the put (ms), value, expiry (ms, 0 = none)}, or {} when there is no such
-- document.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
if #ARGV - 3 > MAX_BATCH then return TOO_MANY end
local reply = {}
for at = 4, #ARGV do
  local version, put, ends, value = document_of(s, redis.call('HGET', s.prefix .. 'docs:' .. ARGV[3], ARGV[at]))
  reply[#reply + 1] = version and {tonumber(version), tonumber(put), value, tonumber(ends)} or {}
end
return reply
