#!lua flags=no-writes
-- How far the logs of sources were taken in. Writes nothing.
-- ARGV[3..] -> sources
-- Answers {position or "" (nothing was taken in), ...}, in order.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local reply = {}
for at = 3, #ARGV do reply[#reply + 1] = redis.call('HGET', s.prefix .. 'in', ARGV[at]) or '' end
return reply
