-- Stores new items for an epoch of a writer. The script remembers the ids of an epoch until the epoch is closed (see
-- close_epoch.lua), also after their items have left. A repeat stores none of these ids. For a closed epoch the script
-- stores nothing.
--   fences                   HASH  writer -> last closed epoch
--   seen:<epoch>:<writer>    SET   ids that the writer has brought in an epoch that is open
-- ARGV[3] -> epoch   ARGV[4] -> writer
-- ARGV[5..] -> triples: id, due (ms, "" = parked), tail of the record (everything behind the version)
-- Answers {codes, now (us)}; a code per item: s stored, h stored and held, d duplicate.
local SEEN_TTL_S = 604800    -- a week: so long the ids of an epoch are remembered when nobody closes the epoch
local n = (#ARGV - 4) / 3
local s = begin_storing(KEYS, ARGV, ARGV[7])
if s.err then return s end
local answer = answer_before(s, n)
if answer then return answer end
local last = redis.call('HGET', s.prefix .. 'fences', ARGV[4])
local closed = last and tonumber(ARGV[3]) <= tonumber(last)
local seen_key = s.prefix .. 'seen:' .. ARGV[3] .. ':' .. ARGV[4]
local have, dead, ids = existing(s, ARGV, 5, n)
local brought = n > 0 and not closed and redis.call('SMISMEMBER', seen_key, unpack(ids)) or {}
for i = 1, n do have[i] = have[i] or closed or brought[i] == 1 end
local codes = store_new(s, ARGV, 5, n, have, dead)
if n > 0 and not closed then
  redis.call('SADD', seen_key, unpack(ids))
  redis.call('EXPIRE', seen_key, SEEN_TTL_S)
end
return finish_storing(s, codes)
