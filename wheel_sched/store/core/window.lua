#!lua flags=no-writes
-- The items that are due next, without bodies. Writes nothing.
-- ARGV[3] -> look ahead (ms)   ARGV[4] -> limit
-- Answers {now (us), epoch, head of due, head of leased, last marker id, id, due, ...}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local limit = tonumber(ARGV[4])
local found = {}
if s.ready then
  found = page_of(s, 'due', '-inf', s.now + tonumber(ARGV[3]), '', 0, limit)
else
  found = redis.call('ZRANGEBYSCORE', KEYS[DUE], '-inf', s.now + tonumber(ARGV[3]), 'WITHSCORES', 'LIMIT', 0, limit)
end
local mark = redis.call('XREVRANGE', KEYS[MARK], '+', '-', 'COUNT', 1)
local reply = {s.us, s.epoch, due_head(s), first_score(KEYS[LEASED]), mark[1] and mark[1][1] or '0-0'}
for i = 1, #found, 2 do
  reply[#reply + 1] = found[i]
  reply[#reply + 1] = tonumber(found[i + 1])
end
return reply
