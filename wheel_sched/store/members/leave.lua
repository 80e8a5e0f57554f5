#!lua flags=allow-oom
-- Removes a member before its lease ends.
-- ARGV[3] -> id
-- Answers 1; 0 when there was no such member.
local s = begin(KEYS, ARGV)
if s.err then return s end
redis.call('HDEL', s.prefix .. 'announced', ARGV[3])
return redis.call('ZREM', s.prefix .. 'members', ARGV[3])
