#!lua flags=no-writes
-- One page of attempt counts, in order of expiry. Writes nothing.
-- ARGV[3] -> rank to start from
-- Answers {key, score (see prelude.lua), ...}, at most MAX_BATCH pairs.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local found = redis.call('ZRANGE', counts_key(s), ARGV[3], tonumber(ARGV[3]) + MAX_BATCH - 1, 'WITHSCORES')
local reply = {}
for i = 1, #found, 2 do
  reply[i] = found[i]
  reply[i + 1] = tonumber(found[i + 1])
end
return reply
