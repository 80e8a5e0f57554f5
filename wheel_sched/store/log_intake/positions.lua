#!lua flags=no-writes
-- The log positions of sources: how far intake has read their logs. Writes nothing.
-- ARGV[3..] -> sources
-- Answers {position or "" (intake has stored nothing of this log), ...}, in order.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local reply = {}
for at = 3, #ARGV do reply[#reply + 1] = redis.call('HGET', s.prefix .. 'in', ARGV[at]) or '' end
return reply
