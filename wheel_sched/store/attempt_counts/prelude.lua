-- Attempt counts: how often a message was tried, kept beside the message, so that a forged header cannot lower it.
--   attempts  ZSET  key -> expiry (s) * 1000 + attempts (999: the message has ended)
local ENDED = 999
room_keys[#room_keys + 1] = 'attempts'

local function counts_key(s) return s.prefix .. 'attempts' end

-- Answers the attempts in a score, and when the count expires (s). An expired count has 0 attempts.
local function attempts_in(s, score)
  score = tonumber(score or '0')
  local expiry = math.floor(score / 1000)
  return expiry * 1000 > s.now and score % 1000 or 0, expiry
end

-- The score of a count of `attempts` (see `bounded_attempts`). The count is kept until `expiry` (ms) at least.
local function count_score(attempts, expiry, expiry_before)
  return math.max(math.ceil(expiry / 1000), expiry_before) * 1000 + attempts
end

-- A count has three digits, and 999 means "the message has ended". So a number of attempts is 998 at most.
local function bounded_attempts(attempts) return math.min(attempts, ENDED - 1) end

-- Removes expired counts, the oldest first, `limit` at most. A call that adds n counts removes up to 2n expired ones.
local function forget_old_counts(s, limit)
  local key = counts_key(s)
  local old = redis.call('ZRANGEBYSCORE', key, '-inf', math.floor(s.now / 1000) * 1000, 'LIMIT', 0, limit)
  if #old > 0 then redis.call('ZREM', key, unpack(old)) end
end

on_sweep[#on_sweep + 1] = function(s) forget_old_counts(s, MAX_BATCH) end
