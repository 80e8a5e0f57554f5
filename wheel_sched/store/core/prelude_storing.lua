-- Storing new items, for the scripts of several rooms. The twin is `storing.py`.

-- Begins a call that stores new items. `tail` is the tail of the first item, false or nil when there is none. Most
-- calls store items of one topic. So the script reads and writes the counters of the first topic with the other fields
-- of `meta`. Answers the state of the call, the names of these counters, and the lengths and the start from `head_of`.
local function begin_storing(KEYS, ARGV, tail)
  local topic, topic_length, route_length, refs_length, head_at = head_of(tail or NO_TAIL)
  local waiting, accepted = 'n:due:' .. topic, 't:accepted:' .. topic
  local s = begin(KEYS, ARGV, LATER, 'seq', waiting, accepted)
  s.waiting, s.accepted = waiting, accepted
  return s, waiting, accepted, topic_length, route_length, refs_length, head_at
end

-- Answers the reply to a call that must not store its `n` items: the first answer of a repeated call, or the refusal of
-- a batch that is too large. Otherwise nil.
local function answer_before(s, n)
  local said = recall(s)
  if said then
    write(s)
    return {said, s.us}
  end
  return n > MAX_BATCH and TOO_MANY or nil
end

-- Looks up the ids of `n` triples from ARGV[first] on. Answers three lists: the record or false, the score among the
-- dead or false, and the id.
local function existing(s, ARGV, first, n)
  if n == 0 then return {}, {}, {} end
  local ids = {}
  for i = 1, n do ids[i] = ARGV[first + 3 * i - 3] end
  -- for a few ids the lookup is as quick as the test whether there are dead ids
  local any = n < 8 or redis.call('ZCARD', s.K[DEAD]) > 0
  return redis.call('HMGET', s.K[BODY], unpack(ids)), any and redis.call('ZMSCORE', s.K[DEAD], unpack(ids)) or {}, ids
end

-- What the hooks of on_storing decide about the items of a call from number `from` on, see store_new.
local function verdicts_on(s, ARGV, first, from, n, have, dead, seen)
  local verdicts = {}
  for _, hook in ipairs(on_storing) do
    for i, verdict in pairs(hook(s, ARGV, first, from, n, have, dead, seen)) do verdicts[i] = verdict end
  end
  local others = {}
  for i = from, n do
    local verdict = verdicts[i]
    if verdict and verdict.other then others[#others + 1] = '\n' .. i .. ':' .. #verdict.other .. ':' .. verdict.other end
  end
  s.others = others
  return verdicts
end

-- Stores `n` triples (id, due, tail) from ARGV[first] on, except those that are in `have` or `dead` (see `existing`),
-- and those that a hook of on_storing refuses. Answers a code per item, and the text that starts every record of this
-- call.
local function store_new(s, ARGV, first, n, have, dead)
  local seq = ms(tonumber(s.meta[8] or '0') + 1)
  local prefix = '1:' .. seq .. ':'
  s.counts = {[s.waiting] = tonumber(s.meta[9] or '0'), [s.accepted] = tonumber(s.meta[10] or '0')}
  local codes, bodies, seen, topics = {}, {}, {}, {}
  local fresh, known, verdicts = 0, nil, nil
  local topic, refs                      -- most batches hold one topic: parse only when the start differs
  local at = first
  for i = 1, n do
    local id, due, tail = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    at = at + 3
    if have[i] or dead[i] or seen[id] then
      codes[i] = 'd'
    else
      if not known or string.sub(tail, 1, #known) ~= known then
        local tl, kl, rl, head_at
        topic, tl, kl, rl, head_at = head_of(tail)
        refs = rl > 0 and string.sub(tail, head_at + tl + kl, head_at + tl + kl + rl - 1) or nil
        -- only tails without route and refs start with the same bytes
        known = (rl == 0 and kl == 0) and string.sub(tail, 1, head_at + tl - 1) or nil
      end
      if refs and not verdicts and string.find(refs, INSTRUCTION, 1, true) then
        verdicts = verdicts_on(s, ARGV, first, i, n, have, dead, seen)
      end
      seen[id] = true
      local verdict = verdicts and verdicts[i]
      codes[i] = verdict and verdict.code
      if codes[i] ~= 'x' then
        due = verdict and verdict.due or due
        bodies[2 * fresh + 1], bodies[2 * fresh + 2] = id, prefix .. tail
        fresh = fresh + 1
        topics[fresh] = topic
        local state = 'held'
        if due == '' then put_held(s, id, 0, topic, 'parked') else state = put_waiting(s, id, tonumber(due), topic, refs or '') end
        if state == 'held' then moves(s, topic, 'due', 'held') end
        codes[i] = codes[i] or (state == 'due' and 's' or 'h')
        if refs then refs_of(s, refs, id, 'SADD') end
      end
    end
  end
  for name, count in pairs(tally_of(topics)) do
    moves(s, name, nil, 'due', count)
    event(s, 'accepted', name, count)
  end
  set(s, 'seq', seq)
  if fresh > 0 then redis.call('HSET', s.K[BODY], unpack(bodies)) end
  return codes, prefix
end

-- Ends a call that stores items: writes everything it has gathered and answers the reply. Behind the codes come lines
-- `<number of the item>:<length of the other id>:<other id>`, for the codes x and r.
local function finish_storing(s, codes)
  local text = table.concat(codes)
  if s.others then text = text .. table.concat(s.others) end
  write(s)
  record_answer(s, text)
  return {text, s.us}
end
