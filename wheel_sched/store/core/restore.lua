-- Puts items back exactly as they were, for restore and reshard. An id that exists is not changed.
-- Works in a frozen namespace, because a reshard freezes it. A record of version 0 is new: it gets a version.
-- ARGV[3..] -> quintuples: id, state (one in flight is due when its lease would have ended), score (ms), record, reason
-- Answers how many were put.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local put, seq = 0, tonumber(redis.call('HGET', KEYS[META], 'seq') or '0')
local greatest = seq
for at = 6, #ARGV, 5 do greatest = math.max(greatest, tonumber(string.match(ARGV[at], '^1:(%d+):') or '0')) end
local fresh
for at = 3, #ARGV, 5 do
  local id, state, score, rec, reason = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  if redis.call('HEXISTS', KEYS[BODY], id) == 0 and redis.call('HEXISTS', KEYS[DEADBODY], id) == 0 then
    if string.sub(rec, 1, 4) == '1:0:' then
      fresh = fresh or greatest + 1
      rec = '1:' .. ms(fresh) .. string.sub(rec, 4)
    end
    local topic, refs = parse(rec)
    topic = topic or ''
    if state == 'leased' then state = 'due' end
    if state == 'dead' then
      bury(s, id, rec, topic, reason, score)
    else
      redis.call('HSET', KEYS[BODY], id, rec)
      if state == 'held' then
        put_held(s, id, score, topic, reason)
        call_all(on_restored, s, id, score, reason)
      else
        table.insert(s.due, score) table.insert(s.due, id)
        if not s.least or score < s.least then s.least = score end
        if refs then call_all(on_put_back, s, id, topic, refs) end
      end
    end
    if refs then refs_of(s, refs, id, 'SADD') end
    moves(s, topic, nil, state)
    event(s, 'accepted', topic)
    put = put + 1
  end
end
-- later records get greater versions, so no two records ever have the same version
greatest = fresh or greatest
if greatest > seq then redis.call('HSET', KEYS[META], 'seq', ms(greatest)) end
write(s)
return put
