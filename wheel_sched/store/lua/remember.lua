-- Attempt records: how often a message was tried, kept until its age cap, so that a forged header cannot lower it.
-- ARGV[3..] -> triples: key, attempts (0 = only ask), expiry (ms)
-- Answers {attempts, ...}: the greatest known, in order.
local s = begin(KEYS, ARGV)
if s.err then return s end
local reply = {}
for at = 3, #ARGV, 3 do
  local key, tries = ARGV[at], math.min(tonumber(ARGV[at + 1]), 999)
  local known, expiry = tries_in(s, redis.call('ZSCORE', KEYS[TRIES], key))
  known = math.max(known, tries)
  if tries > 0 then redis.call('ZADD', KEYS[TRIES], tries_score(known, tonumber(ARGV[at + 2]), expiry), key) end
  reply[#reply + 1] = known
end
return reply
