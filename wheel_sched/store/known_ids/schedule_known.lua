-- Stores new items under ids that stay known for their topics; an id that is known is a duplicate.
-- ARGV[3] -> how long after its due an id stays known (ms)
-- ARGV[4..] -> triples: id, due (ms, "" = parked), tail of the record (everything behind the version)
-- Answers {codes, now (us)}; a code per item: s stored, h stored and held, d duplicate.
local n = (#ARGV - 3) / 3
local s = begin_storing(KEYS, ARGV, ARGV[6])
if s.err then return s end
local answer = answer_before(s, n)
if answer then return answer end
local have, dead = existing(s, ARGV, 4, n)
for i = 1, n do have[i] = have[i] or is_known(s, ARGV[3 * i + 1], head_of(ARGV[3 * i + 3])) end
local codes = store_new(s, ARGV, 4, n, have, dead)
for i = 1, n do
  if codes[i] ~= 'd' then
    local wait = math.max((tonumber(ARGV[3 * i + 2]) or 0) - s.now, 0) + tonumber(ARGV[3])
    redis.call('SET', known_key(s, ARGV[3 * i + 1], head_of(ARGV[3 * i + 3])), ms(s.now + wait), 'PX', ms(wait))
  end
end
return finish_storing(s, codes)
