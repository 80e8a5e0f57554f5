-- Attempt records: how often a message was tried, kept until its age cap, so that a forged header cannot lower it.
-- ARGV[3..] -> triples: key, attempts (0 = only ask), expiry (ms)
-- Answers {attempts, ...}: the greatest known, in order.
local s = begin(KEYS, ARGV)
if s.err then return s end
local reply = {}
for at = 3, #ARGV, 3 do
  local key, tries, expiry = ARGV[at], math.min(tonumber(ARGV[at + 1]), 999), math.ceil(tonumber(ARGV[at + 2]) / 1000)
  local score = tonumber(redis.call('ZSCORE', KEYS[TRIES], key) or '0')
  local known = score % 1000
  if math.floor(score / 1000) * 1000 <= s.now and score > 0 then known = 0 end
  known = math.max(known, tries)
  if tries > 0 then
    redis.call('ZADD', KEYS[TRIES], math.max(expiry, math.floor(score / 1000)) * 1000 + known, key)
  end
  reply[#reply + 1] = known
end
return reply
