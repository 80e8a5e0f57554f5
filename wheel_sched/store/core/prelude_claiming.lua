-- Taking due ids out of `due`, for the scripts that claim. The twin of taking turns is turns.py.

-- The server's processor time (s), and the time since an earlier one (us). On a server without this clock both
-- are 0. The size of a batch follows this time, see batch_size.py.
local function processor_time()
  local known, clock = pcall(function() return os.clock end)
  return known and clock() or 0
end
local function spent(begun) return math.floor((processor_time() - begun) * 1000000) end

-- Recovers ids whose lease ran out, so that this call can claim them.
local function recover_first(s, cap)
  recover(s, MAX_BATCH, cap)
  if #s.due > 0 then
    redis.call('ZADD', s.K[DUE], unpack(s.due))
    s.due, s.least = {}, nil
  end
end

-- Topics take turns while more ids are overdue than two calls can claim. Up to half of a full batch is for topics that
-- the batch does not have yet, even when a million ids of another topic are due before them. To find these topics, each
-- call looks at two parts of the overdue ids:
--   the NEWEST overdue ids: here it finds at once a topic that still gets new items;
--   TURN_LOOK ids from where the last call stopped (field `turn` of meta): here it finds every other topic in time.
-- A call that wants few ids looks at fewer: at most twice as many as it wants.
-- When a call has reached the end, the next call looks at the ids that have become due since. If a call had to skip an
-- id, the next call starts from the front instead.
local TURN_LOOK, NEWEST, TURN_BYTES, TURN_PART, TURN_LEAST = 150, 50, 65536, 50, 8

-- Divides `places` ids of a claim between topics: each topic in turn gets one more, up to the number it wants.
-- `wants`: topic -> number.
local function shares_of(order, wants, places)
  local shares, left = {}, places
  for _, topic in ipairs(order) do shares[topic] = 0 end
  while left > 0 do
    local before = left
    for _, topic in ipairs(order) do
      if left > 0 and shares[topic] < wants[topic] then
        shares[topic] = shares[topic] + 1
        left = left - 1
      end
    end
    if left == before then break end
  end
  return shares
end

-- Overdue ids of topics that are missing among the first `n` ids; `bodies` are the records of these first ids. Answers
-- at most n / 2: ids, scores and records, in order.
local function overdue_of_others(s, bodies, n, until_ms)
  local due, ids, scores, recs = s.K[DUE], {}, {}, {}
  local overdue = redis.call('ZCOUNT', due, '-inf', until_ms)
  if overdue <= 2 * n then return ids, scores, recs end
  local present, fields = {}, {}
  for _, rec in ipairs(bodies) do
    local topic = rec and glance(s, rec)
    if topic and not present[topic] then present[topic], fields[#fields + 1] = true, 'n:due:' .. topic end
  end
  local others = redis.call('ZCARD', due) + (s.ready and redis.call('ZCARD', s.ready) or 0)
  local counted = #fields > 0 and redis.call('HMGET', s.K[META], unpack(fields)) or {}
  for i, field in ipairs(fields) do others = others - tonumber(counted[i] or '0') - (s.tally[field] or 0) end
  if others <= 0 then return ids, scores, recs end
  local left, score, last = string.match(redis.call('HGET', s.K[META], 'turn') or '', '^([01]):([^:]+):(.*)$')
  local rank = n
  if left then rank = math.max(n, rank_behind(due, last, score)) end
  if rank >= overdue then
    if left ~= '1' then return ids, scores, recs end
    left, rank = '0', n
  end
  local stop = math.min(rank + math.min(TURN_LOOK, 2 * n), overdue)
  local found = redis.call('ZRANGE', due, rank, stop - 1, 'WITHSCORES')
  local within = #found / 2            -- the first `within` ids come from `turn` on, the others are the newest
  if stop < overdue then
    local first = math.max(stop, overdue - math.min(NEWEST, n))
    for _, value in ipairs(redis.call('ZRANGE', due, first, overdue - 1, 'WITHSCORES')) do found[#found + 1] = value end
  end
  local topics, bodies, order, wants = {}, {}, {}, {}
  local function look(from, to)
    local bytes = 0
    while from < to and bytes < TURN_BYTES do
      local part, first = {}, from
      for i = first + 1, math.min(first + TURN_PART, to) do part[#part + 1] = found[2 * i - 1] end
      for i, rec in ipairs(redis.call('HMGET', s.K[BODY], unpack(part))) do
        from = first + i
        local topic, _, at
        if rec then topic, _, at = glance(s, rec) end
        if topic then bytes = bytes + #rec - at + 1 end
        if topic and not present[topic] and not is_paused(s, topic) then
          topics[from], bodies[from] = topic, rec
          if not wants[topic] then
            order[#order + 1], wants[topic] = topic, 0
          end
          wants[topic] = wants[topic] + 1
        end
      end
    end
    return from
  end
  local looked = look(0, within)
  look(within, #found / 2)
  local shares = shares_of(order, wants, math.floor(n / 2))
  for i = 1, #found / 2 do
    local topic = topics[i]
    if topic and shares[topic] > 0 then
      shares[topic] = shares[topic] - 1
      local k = #ids + 1
      ids[k], scores[k], recs[k] = found[2 * i - 1], found[2 * i], bodies[i]
    elseif topic and i <= looked then
      left = '1'
    end
  end
  set(s, 'turn', (left or '0') .. ':' .. found[2 * looked] .. ':' .. found[2 * looked - 1])
  return ids, scores, recs
end

-- Takes up to `n` ids that are due at `until_ms` or before out of `due`. Answers lists of ids, due times (text),
-- records, topics, refs and body starts. The call also holds ids of paused topics, and ids without a readable record
-- die.
local function take(s, n, until_ms)
  if s.ready then return shares.take(s, n, until_ms) end
  local ids, dues, recs, topics, refs, starts = {}, {}, {}, {}, {}, {}
  local found = redis.call('ZRANGEBYSCORE', s.K[DUE], '-inf', until_ms, 'WITHSCORES', 'LIMIT', 0, n)
  if #found == 0 then return ids, dues, recs, topics, refs, starts end
  local all, scores = {}, {}
  for i = 1, #found, 2 do all[(i + 1) / 2], scores[(i + 1) / 2] = found[i], found[i + 1] end
  local bodies = redis.call('HMGET', s.K[BODY], unpack(all))
  local first = #all                   -- the number of ids from the front; overdue_of_others adds the others
  if n >= TURN_LEAST and first == n then
    local others, their_scores, their_recs = overdue_of_others(s, bodies, n, until_ms)
    first = n - #others
    for i, id in ipairs(others) do
      all[first + i], scores[first + i], bodies[first + i] = id, their_scores[i], their_recs[i]
    end
    if #others > 0 then redis.call('ZREM', s.K[DUE], unpack(others)) end
  end
  local k, score, due = 0, nil, nil
  for i, id in ipairs(all) do
    local rec = bodies[i]
    if scores[i] ~= score then
      score = scores[i]
      due = ms_of(score)
    end
    local topic, ref, at
    if rec then topic, ref, at = glance(s, rec) end
    if not topic then
      put_dead(s, id, rec or '', '', 'quarantine: the record is missing or cannot be read')
      redis.call('HDEL', s.K[BODY], id)
      add(s, 'n:dead:', 1)
      add(s, 'unreadable', 1)
    elseif s.paused > 0 and is_paused(s, topic) then
      put_held(s, id, tonumber(due), topic, 'paused')
      moves(s, topic, 'due', 'held')
    else
      k = k + 1
      ids[k], dues[k], recs[k], topics[k], refs[k], starts[k] = id, due, rec, topic, ref and indexed(ref) or false, at
    end
  end
  -- removes by rank: these ids are the front of the set, so the server need not look up each member
  if first > 0 then redis.call('ZREMRANGEBYRANK', s.K[DUE], 0, first - 1) end
  return ids, dues, recs, topics, refs, starts
end
