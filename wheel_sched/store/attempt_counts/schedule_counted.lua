-- Stores new items and raises attempt counts in one atomic step. The counts never prevent the storing.
-- ARGV[3] -> how many items
-- ARGV[4..] -> triples: id, due (ms, "" = parked), tail of the record (everything behind the version);
--              then triples: key of an attempt count, attempts, expiry (ms)
-- Answers {codes, now (us)}; a code per item: s stored, h stored and held, d duplicate.
local n = tonumber(ARGV[3])
local s = begin_storing(KEYS, ARGV, n > 0 and ARGV[6])
if s.err then return s end
local answer = answer_before(s, n)
if answer then return answer end
local raised = {}
for at = 4 + 3 * n, #ARGV, 3 do
  local known, expiry_before = attempts_in(s, redis.call('ZSCORE', counts_key(s), ARGV[at]))
  local attempts = math.max(known, bounded_attempts(tonumber(ARGV[at + 1])))
  raised[#raised + 1] = count_score(attempts, tonumber(ARGV[at + 2]), expiry_before)
  raised[#raised + 1] = ARGV[at]
end
local codes = store_new(s, ARGV, 4, n, existing(s, ARGV, 4, n))
if #raised > 0 then
  redis.call('ZADD', counts_key(s), unpack(raised))
  forget_old_counts(s, math.min(#raised, MAX_BATCH))
end
return finish_storing(s, codes)
