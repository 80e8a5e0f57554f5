#!lua flags=allow-oom
-- Changes waiting, held and dead items one by one. Verb c only marks an id in flight; verbs i and m change it.
-- ARGV[3..] -> quintuples: id, verb, argument, version ("" = any; an unreadable dead record has version 0),
-- tail ("" = keep the record):
--   r <due ms>           reschedule a waiting or held id
--   p <due ms, "" = parked, "=" = keep>  replace the record; P: also create it when it is absent
--   i <due ms, "" = parked, "=" = keep>  as p; an id in flight gets the new record and stays claimed (settle.lua: v)
--   m <other id>         gives an id in flight this other id and this record, under the same claim; its old id is free
--   c                    cancel: remove a waiting or held id; mark one in flight
--   h <reason>           hold a waiting id
--   u <due ms, "=" = keep>  release a held id
--   q <due ms>           requeue a dead id
--   x                    delete a dead id
-- Answers {codes, now (us)}; a code per item:
--   o done, a absent (i: or cancelled in flight), f in flight, c marked in flight: it will not wait again,
--   v other version, w wrong state for this verb, d the other id exists.
local s = begin(KEYS, ARGV)
if s.err then return s end
local said = recall(s)
if said then return {said, s.us} end
if (#ARGV - 2) / 5 > MAX_BATCH then return TOO_MANY end
local seq
local function record(tail)
  seq = seq or redis.call('HINCRBY', KEYS[META], 'seq', 1)
  return '1:' .. seq .. ':' .. tail
end
local function place(id, due, topic)  -- no due = parked
  due = tonumber(due)
  if due then
    moves(s, topic, nil, put_waiting(s, id, due, topic))
  else
    put_held(s, id, 0, topic, 'parked')
    moves(s, topic, nil, 'held')
  end
end
-- An id may come twice in a call. Then the second change must find the state that the first one gave it.
local function flush_places()
  if #s.due > 0 or #s.held > 0 then
    write(s)
    s.due, s.least, s.held, s.tally = {}, nil, {}, {}
  end
end
-- Replaces the record of an id in flight, or gives it another id. Claim, lease and cancel mark do not change.
local function change_claimed(id, claim, verb, other, topic, refs, tail)
  local cut, number = string.match(claim, '^(!?)(%d+:%d+:)')
  if verb == 'i' then
    if cut == '!' then return 'a' end
    other = id
  else
    if redis.call('HEXISTS', KEYS[BODY], other) == 1 or redis.call('ZSCORE', KEYS[DEAD], other) then return 'd' end
    redis.call('ZADD', KEYS[LEASED], redis.call('ZSCORE', KEYS[LEASED], id), other)
    redis.call('ZREM', KEYS[LEASED], id)
    redis.call('HDEL', KEYS[BODY], id)
    redis.call('HDEL', KEYS[CLAIM], id)
    if s.ready then shares.renamed(s, id, other) end
    local lapses = redis.call('HGET', KEYS[LAPSED], id)
    if lapses then
      redis.call('HDEL', KEYS[LAPSED], id)
      redis.call('HSET', KEYS[LAPSED], other, lapses)
    end
  end
  if refs then refs_of(s, refs, id, 'SREM') end
  moves(s, topic, 'leased', nil)
  local rec = record(tail)
  topic, refs = parse(rec)
  if refs then refs_of(s, refs, other, 'SADD') end
  moves(s, topic, nil, 'leased')
  redis.call('HSET', KEYS[BODY], other, rec)
  redis.call('HSET', KEYS[CLAIM], other, cut .. number .. (indexed(refs) and 'r' or '-') .. ':' .. topic)
  return 'o'
end
-- Gives an id the record of `tail` and its refs, instead of the old `refs`. Answers the topic of the record.
local function rewrite(id, refs, tail)
  if refs then refs_of(s, refs, id, 'SREM') end
  local rec = record(tail)
  local topic, new_refs = parse(rec)
  redis.call('HSET', KEYS[BODY], id, rec)
  if new_refs then refs_of(s, new_refs, id, 'SADD') end
  return topic
end
local function change_dead(id, verb, due, version, tail)
  local value = redis.call('HGET', KEYS[DEADBODY], id)
  if not value then return 'a' end
  local rec = dead_parts(value)
  local topic, refs, found = parse(rec)
  if version ~= '' and version ~= (found or '0') then return 'v' end
  if verb == 'q' and not topic and tail == '' then return 'w' end
  unearth(s, id, value)
  redis.call('ZREM', KEYS[DEAD], id)
  redis.call('HDEL', KEYS[DEADBODY], id)
  moves(s, topic or '', 'dead', nil)
  if verb == 'x' then
    if refs then refs_of(s, refs, id, 'SREM') end
    call_all(on_free, s, id, topic or '')
    event(s, 'deleted', topic or '')
    return 'o'
  end
  event(s, 'requeued', topic or '')
  if tail == '' then redis.call('HSET', KEYS[BODY], id, rec) else topic = rewrite(id, refs, tail) end
  place(id, due, topic)
  return 'o'
end
local function create(id, verb, due, version, tail)
  if redis.call('HEXISTS', KEYS[DEADBODY], id) == 1 then return 'w' end
  if verb ~= 'P' then return 'a' end
  if version ~= '' then return 'v' end
  local topic = rewrite(id, nil, tail)
  event(s, 'accepted', topic)
  place(id, due, topic)
  return 'o'
end
local function change_waiting(id, verb, argument, tail, rec, topic, refs)
  local due = due_score(s, id)
  local state = due and 'due' or 'held'
  if verb == 'm' or (verb == 'h' and state ~= 'due') or (verb == 'u' and state ~= 'held') then return 'w' end
  local kept, reason = due or verb ~= 'c' and redis.call('ZSCORE', KEYS[HELD], id), nil
  if due then drop_due(s, id) else reason = drop_held(s, id) end
  moves(s, topic, state, nil)
  if verb == 'c' then
    drop_record(s, id)
    if refs then cancelled(s, id, rec) end
    call_all(on_free, s, id, topic)
    event(s, 'cancelled', topic)
    return 'o'
  end
  if verb == 'h' then reason = argument end
  local replaces = verb == 'p' or verb == 'P' or verb == 'i'
  if replaces then topic = rewrite(id, refs, tail) end
  if verb == 'h' or (replaces and argument == '=' and reason) then   -- a held item stays held, with its reason
    put_held(s, id, tonumber(kept), topic, reason)
    moves(s, topic, nil, 'held')
  else
    place(id, argument == '=' and kept or argument, topic)
  end
  return 'o'
end
local function change(id, verb, argument, version, tail)
  flush_places()
  local rec = redis.call('HGET', KEYS[BODY], id)
  if verb == 'q' or verb == 'x' then
    if rec then return redis.call('HEXISTS', KEYS[CLAIM], id) == 1 and 'f' or 'w' end
    return change_dead(id, verb, argument, version, tail)
  end
  if not rec then return create(id, verb, argument, version, tail) end
  local topic, refs, found = parse(rec)
  if not topic then return 'w' end
  if version ~= '' and version ~= found then return 'v' end
  local claim = redis.call('HGET', KEYS[CLAIM], id)
  if not claim then return change_waiting(id, verb, argument, tail, rec, topic, refs) end
  if verb == 'i' or verb == 'm' then return change_claimed(id, claim, verb, argument, topic, refs, tail) end
  if verb ~= 'c' then return 'f' end
  if string.sub(claim, 1, 1) ~= '!' then redis.call('HSET', KEYS[CLAIM], id, '!' .. claim) end
  return 'c'
end
local codes = {}
for at = 3, #ARGV, 5 do
  codes[#codes + 1] = change(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
end
local text = table.concat(codes)
record_answer(s, text)
write(s)
return {text, s.us}
