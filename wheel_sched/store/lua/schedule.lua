-- Stores new items; an id that exists anywhere in the shard is left alone.
-- ARGV[3] -> fence: "" or <epoch>:<writer>. The ids a writer brings in an epoch are remembered until the epoch is closed
--            (fence.lua), also when they have long gone out: a repeat stores none of them. A closed epoch stores nothing.
--            or @<expected>:<next>:<n>:<m>:<source>: the call is a slice of that source's log and moves its position; where the
--            position is another than expected ("" = none yet) nothing is stored: WSPOSITION <position>. Nor where an id
--            is there already, or twice in the slice: WSTAKEN <id>
--            or ~<ms>: the ids are given ones: each is known for its topic until so long after its due, also when it has gone
--            out, and one that is known is a duplicate
--            or +<n>: n attempt records are raised in the same step, whatever they know
-- ARGV[4..] -> triples: id, due (ms, "" = parked, !<reason> = dead at once), tail of the record (all behind its version)
--            then n triples: key of an attempt record, attempts and expiry (ms) that it is raised to;
--            and, with a source, m pairs: key, attempts it must have. Where one knows as many already, has ended, or knows
--            others, nothing is stored: WSCOUNT
-- Answers {codes, now (us)}; a code per item: s stored, h stored and held, d duplicate.
-- Most calls bring one item, and most of their time goes into the commands themselves: there are to be few.
local expected, next_position, raises, compares, source = string.match(ARGV[3], '^@(%d*):(%d+):(%d+):(%d+):(.+)$')
local noted = not source and string.match(ARGV[3], '^%+(%d+)$')
local known_ms = not source and string.match(ARGV[3], '^~(%d+)$')
raises, compares = tonumber(raises or noted or '0'), tonumber(compares or '0')
local n = (#ARGV - 3 - 2 * compares) / 3 - raises
-- mostly the topic of all: its counters are read and written with the rest
local first, topic_length, route_length, refs_length, head_at = head_of(n > 0 and ARGV[6] or NO_TAIL)
local waiting, accepted = 'n:due:' .. first, 't:accepted:' .. first
local s = begin(KEYS, ARGV, LATER, 'seq', waiting, accepted)
if s.err then return s end
if #ARGV == 6 and ARGV[2] == '' and ARGV[3] == '' and s.paused == 0 and string.find(ARGV[5], '^%d+$') then
  -- one item that somebody waits for, of no fence and with no repeats: as below, without the lists
  local id, due, tail = ARGV[4], ARGV[5], ARGV[6]
  if redis.call('HEXISTS', KEYS[BODY], id) == 1 or redis.call('ZSCORE', KEYS[DEAD], id) then return {'d', s.us} end
  local head = first_score(KEYS[DUE])
  if refs_length > 0 then
    local refs_at = head_at + topic_length + route_length
    refs_of(s, string.sub(tail, refs_at, refs_at + refs_length - 1), id, 'SADD')
  end
  local seq = ms(tonumber(s.meta[7] or '0') + 1)
  redis.call('HSET', KEYS[BODY], id, '1:' .. seq .. ':' .. tail)
  redis.call('ZADD', KEYS[DUE], due, id)
  if head < 0 or tonumber(due) < head then redis.call('XADD', KEYS[MARK], 'MAXLEN', 1, '*', 'd', due) end
  redis.call('HSET', KEYS[META], 'last', ms(s.now), 'seq', seq, waiting, ms(tonumber(s.meta[8] or '0') + 1),
             accepted, ms(tonumber(s.meta[9] or '0') + 1))
  return {'s', s.us}
end
s.counts = {[waiting] = tonumber(s.meta[8] or '0'), [accepted] = tonumber(s.meta[9] or '0')}
local said = recall(s)
if said then
  write(s)
  return {said, s.us}
end
if n > MAX_BATCH then return {err = 'WSBATCH at most ' .. MAX_BATCH .. ' items a call'} end
local ids = {}
for i = 1, n do ids[i] = ARGV[3 * i + 1] end
local have = n > 0 and redis.call('HMGET', KEYS[BODY], unpack(ids)) or {}
-- asking for a few is as quick as asking whether there are any
local graves = n > 0 and (n < 8 or redis.call('ZCARD', KEYS[DEAD]) > 0)
local buried = graves and redis.call('ZMSCORE', KEYS[DEAD], unpack(ids)) or {}
local brought, seen_key, closed = {}, nil, false
local raised = {}
if source then
  local position = redis.call('HGET', s.base .. 'in', source) or ''
  if position ~= expected then return {err = 'WSPOSITION ' .. position} end
  if raises + compares > 2 * MAX_BATCH then
    return {err = 'WSBATCH at most ' .. 2 * MAX_BATCH .. ' attempt records a call'}
  end
  local keys, places = {}, {}
  local behind = 3 * (n + raises) + 4
  for i = 1, raises do keys[i] = ARGV[3 * (n + i) + 1] end
  for i = 0, compares - 1 do keys[#keys + 1] = ARGV[behind + 2 * i] end
  local scores = #keys > 0 and redis.call('ZMSCORE', KEYS[TRIES], unpack(keys)) or {}
  for i = 1, compares do
    local score, wanted = scores[raises + i], ARGV[behind + 2 * i - 1]
    if score or wanted ~= '0' then     -- mostly there is none, and none is wanted
      local known = tries_in(s, score)
      if known ~= tonumber(wanted) then return {err = 'WSCOUNT ' .. keys[raises + i] .. ' has ' .. known} end
    end
  end
  for i = 1, raises do
    local key, at = keys[i], 3 * (n + i)
    local tries, known, expiry_before = tonumber(ARGV[at + 2]), 0, 0
    if scores[i] then known, expiry_before = tries_in(s, scores[i]) end
    if known >= tries or known == ENDED then return {err = 'WSCOUNT ' .. key .. ' has ' .. known} end
    tries = bounded_tries(tries)
    local place = places[key]
    if place then                      -- of one key the greatest holds
      tries, expiry_before = math.max(tries, raised[place] % 1000), math.floor(raised[place] / 1000)
    else
      place = #raised + 1
      places[key], raised[place + 1] = place, key
    end
    raised[place] = tries_score(tries, tonumber(ARGV[at + 3]), expiry_before)
  end
  local own = {}
  for i = 1, n do
    if have[i] or buried[i] or own[ids[i]] then return {err = 'WSTAKEN ' .. ids[i]} end
    own[ids[i]] = true
  end
elseif noted then
  for i = 1, raises do
    local at = 3 * (n + i)
    local known, expiry_before = tries_in(s, redis.call('ZSCORE', KEYS[TRIES], ARGV[at + 1]))
    local tries = math.max(known, bounded_tries(tonumber(ARGV[at + 2])))
    raised[2 * i - 1] = tries_score(tries, tonumber(ARGV[at + 3]), expiry_before)
    raised[2 * i] = ARGV[at + 1]
  end
elseif known_ms then
  for i = 1, n do brought[i] = is_known(s, ids[i], head_of(ARGV[3 * i + 3])) and 1 end
elseif ARGV[3] ~= '' then
  local epoch, writer = string.match(ARGV[3], '^(%d+):(.+)$')
  if not epoch then return {err = 'WSBATCH a fence must be <epoch>:<writer>'} end
  local last = redis.call('HGET', s.base .. 'fences', writer)
  closed = last and tonumber(epoch) <= tonumber(last)
  seen_key = s.base .. 'seen:' .. epoch .. ':' .. writer
  brought = n > 0 and not closed and redis.call('SMISMEMBER', seen_key, unpack(ids)) or {}
end
local seq = ms(tonumber(s.meta[7] or '0') + 1)
local prefix = '1:' .. seq .. ':'
local codes, bodies, seen, topics = {}, {}, {}, {}
local fresh, known = 0, nil
local topic, refs                      -- a batch mostly holds one topic: parse only when the start differs
for i = 1, n do
  local id, tail = ids[i], ARGV[3 * i + 3]
  if closed or brought[i] == 1 or have[i] or buried[i] or seen[id] then
    codes[i] = 'd'
  else
    seen[id] = true
    if not known or string.sub(tail, 1, #known) ~= known then
      local tl, kl, rl, at
      topic, tl, kl, rl, at = head_of(tail)
      refs = rl > 0 and string.sub(tail, at + tl + kl, at + tl + kl + rl - 1) or nil
      -- only heads without route and refs are alike from item to item
      known = (rl == 0 and kl == 0) and string.sub(tail, 1, at + tl - 1) or nil
    end
    local due = ARGV[3 * i + 2]
    if string.byte(due) == 33 then
      put_dead(s, id, prefix .. tail, topic, string.sub(due, 2))
      moves(s, topic, nil, 'dead')
      event(s, 'accepted', topic)
      codes[i] = 's'
    else
      bodies[2 * fresh + 1], bodies[2 * fresh + 2] = id, prefix .. tail
      fresh = fresh + 1
      topics[fresh] = topic
      if due == '' then
        put_held(s, id, 0, topic, 'parked')
        codes[i] = 'h'
      else
        codes[i] = put_waiting(s, id, tonumber(due), topic) == 'due' and 's' or 'h'
      end
      if codes[i] == 'h' then moves(s, topic, 'due', 'held') end
    end
    if refs then refs_of(s, refs, id, 'SADD') end
    if known_ms then
      local wait = math.max((tonumber(due) or 0) - s.now, 0) + tonumber(known_ms)
      redis.call('SET', known_key(s, id, topic), ms(s.now + wait), 'PX', ms(wait))
    end
  end
end
for name, count in pairs(tally_of(topics)) do
  moves(s, name, nil, 'due', count)
  event(s, 'accepted', name, count)
end
set(s, 'seq', seq)
if fresh > 0 then redis.call('HSET', KEYS[BODY], unpack(bodies)) end
if seen_key and n > 0 and not closed then
  redis.call('SADD', seen_key, unpack(ids))
  redis.call('EXPIRE', seen_key, SEEN_TTL_S)
end
if source then redis.call('HSET', s.base .. 'in', source, next_position) end
if #raised > 0 then
  redis.call('ZADD', KEYS[TRIES], unpack(raised))
  forget_tries(s, math.min(#raised, MAX_BATCH))   -- twice as many
end
local text = table.concat(codes)
write(s)
record_answer(s, text)
return {text, s.us}
