-- Fair shares: picks ids from the rings (`pick`), and decides how many ids of a claim each topic gives (`shares.take`).
do
local ROUNDS = 4               -- how often a call looks for keys with due ids, when it finds keys without any
-- A claim serves about this many keys, because each costs four commands, however many ids it gives. So in one turn, a key
-- gives up to a tenth of the claim (`quantum`); a key whose weight is below 1 gives less in proportion, and at least one.
local KEYS_OF_A_CLAIM = 10
local make_ready, add_row, parts_of = shares_work.make_ready, shares_work.add_row, shares_work.parts_of

-- How many ids a rate allows now (at most `most`), and its state `tat`.
local function allowed(s, tat, interval, burst, most)
  tat = math.max(tonumber(tat or '0'), s.us)
  return math.min(most, math.max(0, math.floor((s.us + burst * interval - tat) / interval))), tat
end

-- When a rate allows `count` ids again (ms).
local function open_at(s, tat, interval, burst, count)
  return math.max(s.now + 1, math.ceil((tat - (burst - count) * interval) / 1000))
end

-- Reads more of a key's queue into `entry`: the ids that are in `ready`, up to the first that is not due.
local function load(s, entry, count, until_ms)
  while #entry.ids - entry.taken < 1 and not entry.over do
    local found = redis.call('ZRANGEBYLEX', entry.queue, '[' .. entry.key .. '\0', '(' .. entry.key .. '\1',
                             'LIMIT', entry.read, count)
    if #found < count then entry.over = true end
    local read, base, k, sub = {}, #entry.key, #entry.ids, string.sub
    for i = 1, #found do read[i] = sub(found[i], base + 18) end
    local scores = #found > 0 and redis.call('ZMSCORE', s.ready, unpack(read)) or {}
    local ids, dues, members = entry.ids, entry.dues, entry.members
    local text, due, due_ms            -- often several ids after each other have the same due
    for i = 1, #found do
      local score, padded = scores[i], sub(found[i], base + 2, base + 17)
      if padded ~= text then
        text, due = padded, tonumber(padded)
        due_ms = ms(due)
      end
      if not score or (score ~= due_ms and tonumber(score) ~= due) then
        entry.stale[#entry.stale + 1] = found[i]
      elseif due > until_ms then
        entry.over, entry.future = true, due
        break
      else
        k = k + 1
        ids[k], dues[k], members[k] = read[i], due_ms, found[i]
      end
    end
    entry.read = entry.read + #found
  end
  return #entry.ids > entry.taken
end

-- Makes an entry for each key of a page of the ring, with what its limits allow.
local function entries_of(s, topic, page, settings, need)
  local keys, names, weights, busy, tats = {}, {}, {}, {}, {}
  for i = 1, #page, 2 do
    local k = #keys + 1
    keys[k], names[k] = page[i], topic .. '\0' .. page[i]
  end
  if settings.weights then weights = redis.call('HMGET', s.prefix .. 'fairweights:' .. topic, unpack(keys)) end
  if settings.cap > 0 then busy = redis.call('HMGET', s.prefix .. 'fairbusy', unpack(names)) end
  if settings.interval > 0 then tats = redis.call('ZMSCORE', s.prefix .. 'fairtat', unpack(names)) end
  local entries = {}
  for k, key in ipairs(keys) do
    local entry = {topic = topic, key = key, name = names[k], time = tonumber(page[2 * k]),
                   cost = tonumber(weights[k] or settings.cost), queue = s.prefix .. 'fairqueue:' .. topic,
                   ids = {}, dues = {}, members = {}, stale = {}, read = 0, taken = 0, left = need}
    if settings.cap > 0 then entry.left = math.min(entry.left, settings.cap - tonumber(busy[k] or '0')) end
    if settings.interval > 0 then
      local free, tat = allowed(s, tats[k], settings.interval, settings.burst, need)
      entry.left, entry.tat, entry.free = math.min(entry.left, free), tat, free
    end
    entries[k] = entry
  end
  return entries
end

-- Writes what was taken from a key on a page of the ring, and decides whether the key stays in the ring. Adds its new
-- time to `times`.
local function write_back(s, topic, entry, settings, times)
  local ring = s.prefix .. 'fairring:' .. topic
  if #entry.stale > 0 then redis.call('ZREM', entry.queue, unpack(entry.stale)) end
  if entry.taken > 0 then       -- the taken ids are the first in the queue
    redis.call('ZREMRANGEBYLEX', entry.queue, '[' .. entry.members[1], '[' .. entry.members[entry.taken])
  end
  if settings.interval > 0 and entry.taken > 0 then
    entry.tat = entry.tat + entry.taken * settings.interval
    redis.call('ZADD', s.prefix .. 'fairtat', ms(entry.tat), entry.name)
  end
  local waits
  if entry.left <= 0 and entry.held then
    if settings.interval > 0 and entry.free <= entry.taken then
      waits = open_at(s, entry.tat, settings.interval, settings.burst, 1)
    end
  elseif entry.future and entry.taken == 0 and entry.future > s.now then
    redis.call('ZADD', s.prefix .. 'fairnext', 'LT', ms(entry.future), entry.name)
  elseif entry.taken > 0 or entry.future or not entry.over then
    if entry.taken > 0 then times[#times + 1], times[#times + 2] = entry.time, entry.key end
    return entry.taken == 0 and 1 or 0
  end
  redis.call('ZREM', ring, entry.key)
  if waits then redis.call('ZADD', s.prefix .. 'fairwait', ms(waits), entry.name) end
  return 0
end

-- Lets a key give the ids of one turn, at most `most`. Answers how many.
local function take_turn(entry, quantum, most, out)
  most = math.min(most, entry.left, #entry.ids - entry.taken, math.max(1, math.floor(quantum * 10000 / entry.cost)))
  local ids, dues, entries, n, taken = out.ids, out.dues, out.entries, #out.ids, entry.taken
  for i = 1, most do ids[n + i], dues[n + i], entries[n + i] = entry.ids[taken + i], entry.dues[taken + i], entry end
  entry.taken, entry.left, entry.time = entry.taken + most, entry.left - most, entry.time + most * entry.cost
  return most
end

-- Picks up to `need` ids from the keys on a page of the ring. Picks none from a key whose virtual time is greater than
-- `last`, because a key that is not on the page may come before it. Answers how many, and whether a key may have more.
local function pick_from(s, entries, quantum, need, last, until_ms, out)
  local order, first, count, chunk = {}, 1, 0, math.max(4, quantum, math.ceil(need / #entries))
  for i, entry in ipairs(entries) do order[i] = entry end
  while count < need and first <= #order and order[first].time <= last do
    local entry = order[first]
    first = first + 1
    if entry.left <= 0 then
      entry.held = true
    elseif #entry.ids > entry.taken or load(s, entry, chunk, until_ms) then
      count = count + take_turn(entry, quantum, math.min(quantum, need - count), out)
      local low, high = first, #order + 1
      while low < high do
        local middle = math.floor((low + high) / 2)
        if order[middle].time > entry.time then high = middle else low = middle + 1 end
      end
      if low == first then       -- the same key again, as in a burst of one key: its old position is free
        first = first - 1
        order[first] = entry
      else
        table.insert(order, low, entry)
      end
    end
  end
  return count, first <= #order
end

-- Takes up to `n` ids of a fair topic by the shares of its keys. Adds them and their due times (text) to `out`. Answers
-- how many.
local function pick(s, topic, n, until_ms, out)
  local settings = shares_work.settings_or_none(s, topic)
  local ring, need, limited, tat = s.prefix .. 'fairring:' .. topic, n, false, nil
  if settings.topic_interval > 0 then
    need, tat = allowed(s, redis.call('ZSCORE', s.prefix .. 'fairtat', topic), settings.topic_interval,
                        settings.topic_burst, n)
    limited = need < n
  end
  local total, skip, empty, quantum = 0, 0, false, math.ceil(n / KEYS_OF_A_CLAIM)
  for round = 1, ROUNDS do
    if total >= need or empty then break end
    -- the first page has as many keys as fill the claim when each has a whole turn
    local size = round == 1 and math.ceil(need / quantum) + 1 or need - total
    local page = redis.call('ZRANGE', ring, skip, skip + size - 1, 'WITHSCORES')
    if #page == 0 then break end
    local entries = entries_of(s, topic, page, settings, need - total)
    local ends = #entries < size or redis.call('ZCARD', ring) == skip + #entries
    local whole, times = skip == 0 and ends, {}
    local last = ends and math.huge or entries[#entries].time
    local count, more = pick_from(s, entries, quantum, need - total, last, until_ms, out)
    total = total + count
    for _, entry in ipairs(entries) do
      skip = skip + write_back(s, topic, entry, settings, times)
      more = more or entry.future
    end
    if #times > 0 then redis.call('ZADD', ring, unpack(times)) end
    if whole and not more and skip == 0 then
      redis.call('DEL', ring)      -- no key has more ids: there is nothing to share
      empty = true
    end
  end
  if tat and total > 0 then
    tat = tat + total * settings.topic_interval
    redis.call('ZADD', s.prefix .. 'fairtat', ms(tat), topic)
  end
  if redis.call('EXISTS', ring) == 0 then
    redis.call('ZREM', s.prefix .. 'fairturns', topic)
  elseif limited and total >= need then
    -- the topic waits until its rate allows the ids of 10 ms, so that a fast rate does not wake a claimer for each id
    local count = math.max(1, math.min(settings.topic_burst, math.floor(10000 / settings.topic_interval)))
    redis.call('ZREM', s.prefix .. 'fairturns', topic)
    redis.call('ZADD', s.prefix .. 'fairwait',
               ms(open_at(s, tat, settings.topic_interval, settings.topic_burst, count)), topic)
  end
  return total
end

-- The ids at the front of `due` that are of no fair topic, each as {id, score, record}; their topics, in order; and how
-- many of the ids each topic has.
local function front(s, n, until_ms)
  local found = redis.call('ZRANGEBYSCORE', s.K[DUE], '-inf', until_ms, 'WITHSCORES', 'LIMIT', 0, n)
  if #found == 0 then return {}, {}, {} end
  local all, scores, rows, plain, order, wants = {}, {}, shares_work.new_rows(), {}, {}, {}
  for i = 1, #found, 2 do all[(i + 1) / 2], scores[(i + 1) / 2] = found[i], found[i + 1] end
  local bodies = redis.call('HMGET', s.K[BODY], unpack(all))
  if n >= TURN_LEAST and #all == n then
    local others, their_scores, their_recs = overdue_of_others(s, bodies, n, until_ms)
    local first = n - #others
    for i, id in ipairs(others) do
      all[first + i], scores[first + i], bodies[first + i] = id, their_scores[i], their_recs[i]
    end
  end
  for i, id in ipairs(all) do
    local parts = bodies[i] and shares_work.parts_of(s, bodies[i])
    local topic = parts and parts.topic
    if parts and shares_work.settings_of(s, topic) then
      add_row(rows, id, scores[i], topic, parts.key)
    else
      plain[#plain + 1] = {id, ms_of(scores[i]), bodies[i]}
      topic = 'u' .. (topic or '')
      if not wants[topic] then order[#order + 1], wants[topic] = topic, 0 end
      wants[topic] = wants[topic] + 1
    end
  end
  make_ready(s, rows)
  return plain, order, wants
end

-- Decides which `n` ids go out: ids of the fair topics, and ids at the front of `due`. Topics take turns, and the topic
-- that was served last comes last.
local function share_out(s, n, until_ms)
  local plain, order, wants = front(s, n, until_ms)
  local turns = redis.call('HMGET', s.K[META], 'fair_turn', 'fair_rest')
  local rings = redis.call('ZRANGE', s.prefix .. 'fairturns', 0, n - 1, 'WITHSCORES')
  local picked = {ids = {}, dues = {}, entries = {}}
  if #rings == 0 then return plain, #plain, picked end
  local claimants, rest = {}, tonumber(turns[2] or '0')
  for i = 1, #rings, 2 do
    local name = 'f' .. rings[i]
    if tonumber(rings[i + 1]) > rest then
      for _, other in ipairs(order) do claimants[#claimants + 1] = other end
      order = {}
    end
    claimants[#claimants + 1], wants[name] = name, n
  end
  for _, other in ipairs(order) do claimants[#claimants + 1] = other end
  local served, front_count, left = {}, 0, n
  for _ = 1, ROUNDS do
    local places, before = shares_of(claimants, wants, left), left
    for _, name in ipairs(claimants) do
      local share = places[name]
      if share > 0 and string.sub(name, 1, 1) == 'f' then
        local topic = string.sub(name, 2)
        local count = pick(s, topic, share, until_ms, picked)
        wants[name] = count < share and 0 or wants[name] - count
        if count > 0 then served[topic] = true end
        left = left - count
      elseif share > 0 then
        wants[name], front_count, left = wants[name] - share, front_count + share, left - share
      end
    end
    if left == 0 or left == before then break end
  end
  local turn = tonumber(turns[1] or '0') + 1
  set(s, 'fair_turn', ms(turn))
  if front_count > 0 then set(s, 'fair_rest', ms(turn)) end
  for topic in pairs(served) do redis.call('ZADD', s.prefix .. 'fairturns', 'XX', turn, topic) end
  return plain, front_count, picked
end

-- How the record of an id of this key starts, behind its version, when it has no route and no other refs.
local function usual_start(entry)
  local refs = entry.key ~= '' and 'fair:' .. entry.key or ''
  return #entry.topic .. ':0:' .. #refs .. ':' .. entry.topic .. refs
end

-- Where the body of a picked record starts, when it starts as usual; otherwise nil.
local function usual_body(entry, rec)
  local start = entry.start
  if not start then
    start = usual_start(entry)
    entry.start = start
  end
  local at = string.find(rec, ':', 3, true)
  if at and string.sub(rec, 1, 2) == '1:' and string.sub(rec, at + 1, at + #start) == start then return at + #start + 1 end
end

-- Takes up to `n` ids that may go now out of `due` and `ready`. Answers as `take` of the core.
function shares.take(s, n, until_ms)
  local ids, dues, recs, topics, refs, starts = {}, {}, {}, {}, {}, {}
  shares_work.wake(s, n)
  shares_work.prepare(s, until_ms)
  if n == 0 then return ids, dues, recs, topics, refs, starts end
  local plain, front_count, picked = share_out(s, n, until_ms)
  local k = 0
  local function add_one(id, due, rec, topic, ref, at)
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
      ids[k], dues[k], recs[k], topics[k], refs[k], starts[k] = id, due, rec, topic, ref, at
      return true
    end
  end
  local nothing, gone = {}, {}
  for i = 1, front_count do
    local id, due, rec = unpack(plain[i], 1, 3)
    local parts = rec and parts_of(s, rec) or nothing
    gone[i] = id
    add_one(id, due, rec, parts.topic, parts.refs, parts.at)
  end
  if #gone > 0 then redis.call('ZREM', s.K[DUE], unpack(gone)) end
  if #picked.ids == 0 then return ids, dues, recs, topics, refs, starts end
  local bodies, others, left = redis.call('HMGET', s.K[BODY], unpack(picked.ids)), shares_work.new_rows(), {}
  for i, id in ipairs(picked.ids) do
    local entry, rec, due = picked.entries[i], bodies[i], picked.dues[i]
    local at = rec and usual_body(entry, rec)
    local parts = not at and (rec and parts_of(s, rec) or nothing)
    if parts and parts.topic and (parts.topic ~= entry.topic or parts.key ~= entry.key) then
      add_row(others, id, due, parts.topic, parts.key)    -- the record was changed: the id belongs in another queue
    else
      left[#left + 1] = id
      local taken
      if at then
        taken = add_one(id, due, rec, entry.topic, false, at)
      else
        taken = add_one(id, due, rec, parts.topic, parts.refs, parts.at)
      end
      if taken then shares_work.occupy(s, id, entry.topic, entry.key) end
    end
  end
  if #others.ids > 0 then make_ready(s, others) end
  if #left > 0 then redis.call('ZREM', s.ready, unpack(left)) end   -- last: an id may have been in two queues
  return ids, dues, recs, topics, refs, starts
end
end
