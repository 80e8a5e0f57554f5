#!lua flags=allow-oom
-- Raises attempt counts: each count becomes the greatest number that any caller has given.
-- ARGV[3..] -> triples: key, attempts (0 = only read, 999 = the message has ended), expiry (ms)
-- Answers {attempts, ...}: the greatest numbers, in order; 998 means 998 or more, 999 means "the message has ended".
local s = begin(KEYS, ARGV)
if s.err then return s end
local reply, raised, counts = {}, 0, counts_key(s)
for at = 3, #ARGV, 3 do
  local key, attempts = ARGV[at], tonumber(ARGV[at + 1])
  if attempts ~= ENDED then attempts = bounded_attempts(attempts) end
  local known, expiry = attempts_in(s, redis.call('ZSCORE', counts, key))
  known = math.max(known, attempts)
  if attempts > 0 then
    redis.call('ZADD', counts, count_score(known, tonumber(ARGV[at + 2]), expiry), key)
    raised = raised + 1
  end
  reply[#reply + 1] = known
end
if raised > 0 then forget_old_counts(s, 2 * raised) end
return reply
