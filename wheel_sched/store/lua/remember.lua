-- Attempt records: how often a message was tried, kept until its age cap, so that a forged header cannot lower it.
-- ARGV[3..] -> triples: key, attempts (0 = only ask, 999 = it has ended), expiry (ms)
-- Answers {attempts, ...}: the greatest known, in order; 998 stands for itself and all above, 999 for "it has ended".
local s = begin(KEYS, ARGV)
if s.err then return s end
local reply, raised = {}, 0
for at = 3, #ARGV, 3 do
  local key, tries = ARGV[at], tonumber(ARGV[at + 1])
  if tries ~= ENDED then tries = bounded_tries(tries) end
  local known, expiry = tries_in(s, redis.call('ZSCORE', KEYS[TRIES], key))
  known = math.max(known, tries)
  if tries > 0 then
    redis.call('ZADD', KEYS[TRIES], tries_score(known, tonumber(ARGV[at + 2]), expiry), key)
    raised = raised + 1
  end
  reply[#reply + 1] = known
end
if raised > 0 then forget_tries(s, 2 * raised) end
return reply
