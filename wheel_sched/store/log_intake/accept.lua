-- Stores a log batch of a source in one atomic step: items, dead letters, attempt counts and the position; all or none.
-- ARGV[3] -> source   ARGV[4] -> expected position ("" = none yet)   ARGV[5] -> next position
-- ARGV[6] -> number of items   ARGV[7] -> of dead letters   ARGV[8] -> of counts to raise
-- ARGV[9..] -> items:         id, due (ms, "" = parked), tail of the record (everything behind the version)
--              dead letters:  id, reason, tail
--              counts:        key, attempts, expiry (ms) that the count is raised to
--              and, up to the end, pairs: key, attempts that the count must have
-- Nothing is stored when:
--   the stored position is not the expected one                         WSPOSITION <position>
--   a stored count is not below the count to raise, or its message has ended,
--   or a stored count is not the count to compare                       WSCOUNT <key> has <attempts>
--   an id exists in the shard, or comes twice in the batch              WSTAKEN <id>
-- Answers {codes, now (us)}; a code per item, then one per dead letter: s stored, h stored and held.
local source, expected, n, buried = ARGV[3], ARGV[4], tonumber(ARGV[6]), tonumber(ARGV[7])
local all, raises = n + buried, tonumber(ARGV[8])
local first_count = 9 + 3 * all
local first_compared = first_count + 3 * raises
local compares = (#ARGV + 1 - first_compared) / 2
local s = begin_storing(KEYS, ARGV, n > 0 and ARGV[11])
if s.err then return s end
local answer = answer_before(s, all)
if answer then return answer end
local position = redis.call('HGET', s.prefix .. 'in', source) or ''
if position ~= expected then return {err = 'WSPOSITION ' .. position} end
if raises + compares > 2 * MAX_BATCH then
  return {err = 'WSBATCH at most ' .. 2 * MAX_BATCH .. ' attempt counts a call'}
end

local keys = {}
for i = 1, raises do keys[i] = ARGV[first_count + 3 * i - 3] end
for i = 1, compares do keys[raises + i] = ARGV[first_compared + 2 * i - 2] end
local scores = #keys > 0 and redis.call('ZMSCORE', counts_key(s), unpack(keys)) or {}
for i = 1, compares do
  local score, wanted = scores[raises + i], ARGV[first_compared + 2 * i - 1]
  if score or wanted ~= '0' then     -- the quick test first: most messages have no count and expect none
    local known = attempts_in(s, score)
    if known ~= tonumber(wanted) then return {err = 'WSCOUNT ' .. keys[raises + i] .. ' has ' .. known} end
  end
end
local raised, places = {}, {}
for i = 1, raises do
  local key, at = keys[i], first_count + 3 * i - 3
  local attempts, known, expiry_before = tonumber(ARGV[at + 1]), 0, 0
  if scores[i] then known, expiry_before = attempts_in(s, scores[i]) end
  if known >= attempts or known == ENDED then return {err = 'WSCOUNT ' .. key .. ' has ' .. known} end
  attempts = bounded_attempts(attempts)
  local place = places[key]
  if place then                      -- when a key comes twice, the greater number counts
    attempts, expiry_before = math.max(attempts, raised[place] % 1000), math.floor(raised[place] / 1000)
  else
    place = #raised + 1
    places[key], raised[place + 1] = place, key
  end
  raised[place] = count_score(attempts, tonumber(ARGV[at + 2]), expiry_before)
end

local have, dead, ids = existing(s, ARGV, 9, all)
local own = {}
for i = 1, all do
  if have[i] or dead[i] or own[ids[i]] then return {err = 'WSTAKEN ' .. ids[i]} end
  own[ids[i]] = true
end

local codes, prefix = store_new(s, ARGV, 9, n, have, dead)
for i = n + 1, all do
  local tail = ARGV[3 * i + 8]
  local topic, tl, kl, rl, at = head_of(tail)
  put_dead(s, ids[i], prefix .. tail, topic, ARGV[3 * i + 7])
  moves(s, topic, nil, 'dead')
  event(s, 'accepted', topic)
  if rl > 0 then refs_of(s, string.sub(tail, at + tl + kl, at + tl + kl + rl - 1), ids[i], 'SADD') end
  codes[i] = 's'
end
redis.call('HSET', s.prefix .. 'in', source, ARGV[5])
if #raised > 0 then
  redis.call('ZADD', counts_key(s), unpack(raised))
  forget_old_counts(s, math.min(#raised, MAX_BATCH))
end
return finish_storing(s, codes)
