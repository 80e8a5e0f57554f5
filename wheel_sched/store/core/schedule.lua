-- Stores new items. An id that exists anywhere in the shard is not changed.
-- ARGV[3..] -> triples: id, due (ms, "" = parked), tail of the record (everything behind the version)
-- Answers {codes, now (us)}; a code per item: s stored, h stored and held, d duplicate; x and r: see finish_storing.
-- Most calls bring one item and spend most of their time in the commands, so this script uses few commands.
local n = (#ARGV - 2) / 3
local s, waiting, accepted, topic_length, route_length, refs_length, head_at = begin_storing(KEYS, ARGV, ARGV[5])
if s.err then return s end
local refs_at = head_at + topic_length + route_length
local refs = refs_length > 0 and string.sub(ARGV[5], refs_at, refs_at + refs_length - 1)
if n == 1 and ARGV[2] == '' and s.paused == 0 and string.find(ARGV[4], '^%d+$')
   and not (refs and string.find(refs, INSTRUCTION, 1, true))
   and not (s.ready and shares.waits(s, string.sub(ARGV[5], head_at, head_at + topic_length - 1), tonumber(ARGV[4]))) then
  -- one waiting item, no token: does the same as the code below, without the lists
  local id, due, tail = ARGV[3], ARGV[4], ARGV[5]
  local seq = ms(tonumber(s.meta[8] or '0') + 1)
  if redis.call('ZSCORE', KEYS[DEAD], id) or redis.call('HSETNX', KEYS[BODY], id, '1:' .. seq .. ':' .. tail) == 0 then
    return {'d', s.us}
  end
  local head = first_score(KEYS[DUE])
  if refs then refs_of(s, refs, id, 'SADD') end
  redis.call('ZADD', KEYS[DUE], due, id)
  if head < 0 or tonumber(due) < head then redis.call('XADD', KEYS[MARK], 'MAXLEN', 1, '*', 'd', due) end
  redis.call('HSET', KEYS[META], 'last', ms(s.now), 'seq', seq, waiting, ms(tonumber(s.meta[9] or '0') + 1),
             accepted, ms(tonumber(s.meta[10] or '0') + 1))
  return {'s', s.us}
end
local answer = answer_before(s, n)
if answer then return answer end
return finish_storing(s, (store_new(s, ARGV, 3, n, existing(s, ARGV, 3, n))))
