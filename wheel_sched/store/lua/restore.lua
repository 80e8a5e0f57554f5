-- Puts items back exactly as they were, for restore and reshard; an id that exists is left alone.
-- Works in a frozen namespace: it is what freezes it.
-- ARGV[3..] -> quintuples: id, state (due, held or dead), score (ms), record, reason
-- Answers how many were put.
local frozen = redis.call('HGET', KEYS[META], 'frozen')
local s = begin(KEYS, ARGV, true)
if s.err then return s end
s.paused = frozen and 0 or s.paused
local put = 0
for at = 3, #ARGV, 5 do
  local id, state, score, rec, reason = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  if redis.call('HEXISTS', KEYS[BODY], id) == 0 and redis.call('HEXISTS', KEYS[DEADBODY], id) == 0 then
    local topic, refs = parse(rec)
    topic = topic or ''
    if state == 'dead' then
      redis.call('ZADD', KEYS[DEAD], score, id)
      redis.call('HSET', KEYS[DEADBODY], id, #reason .. ':' .. reason .. rec)
    else
      redis.call('HSET', KEYS[BODY], id, rec)
      if state == 'held' then
        put_held(s, id, score, topic, reason)
      else
        table.insert(s.due, score) table.insert(s.due, id)
        if not s.least or score < s.least then s.least = score end
      end
    end
    if refs then refs_of(s, refs, id, 'SADD') end
    moves(s, topic, nil, state)
    event(s, 'accepted', topic)
    put = put + 1
  end
end
finish(s)
return put
