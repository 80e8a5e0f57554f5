-- Fair shares: lets new ids of fair topics wait in `ready` and in the queues of their keys (`shares.write_waiting`),
-- and moves overdue ids from `due` to there (`shares_work.prepare`).
do
-- A claim looks at STEP ids from where the last one stopped, and at the NEWEST overdue ones. This keeps the server busy
-- for about a millisecond more. It stops after BYTES of records or OTHERS ids of other topics.
local STEP, NEWEST, BYTES, PART, OTHERS = 120, 60, 131072, 60, 100

-- Ids of fair topics that go into the queues: the ids, and the arguments that add them to `ready`. For each topic also
-- the new entries of its queue, and the keys of these entries, each with its earliest due.
function shares_work.new_rows() return {ids = {}, ready = {}, queues = {}, keys = {}, order = {}} end
function shares_work.add_row(rows, id, score, topic, key)
  if score ~= rows.score then
    rows.score, rows.due = score, ms_of(score)
    rows.padded = '\0' .. string.format('%016d', tonumber(rows.due))
  end
  local n, queue = #rows.ids + 1, rows.queues[topic]
  if not queue then
    queue = {}
    rows.queues[topic], rows.keys[topic], rows.order[#rows.order + 1] = queue, {}, topic
  end
  rows.ids[n], rows.ready[2 * n - 1], rows.ready[2 * n] = id, rows.due, id
  local at = #queue
  queue[at + 1], queue[at + 2] = 0, key .. rows.padded .. id
  local keys = rows.keys[topic]
  if not keys[key] then
    keys[key], keys[#keys + 1] = rows.due, key
  elseif tonumber(rows.due) < tonumber(keys[key]) then
    keys[key] = rows.due
  end
end

-- Writes rows into `ready` and the queues.
local function enqueue(s, rows)
  redis.call('ZADD', s.ready, unpack(rows.ready))
  for _, topic in ipairs(rows.order) do redis.call('ZADD', s.prefix .. 'fairqueue:' .. topic, unpack(rows.queues[topic])) end
  redis.call('SADD', s.prefix .. 'fairqueues', unpack(rows.order))
end

-- A new id that is due within this time (ms) waits in `ready` at once. A later one waits in `due`, where it costs less.
local SOON = 60000

function shares.waits(s, topic, due)
  return due <= s.now + SOON and shares_work.settings_of(s, topic) and true or false
end

function shares.add_waiting(s, id, due, topic, refs)
  local rows = s.waiting_rows
  if not rows then
    rows = shares_work.new_rows()
    s.waiting_rows, rows.key_of = rows, {}
  end
  local key = rows.key_of[refs]        -- many items of a call have the same refs
  if not key then
    key = shares_work.key_of(refs)
    rows.key_of[refs] = key
  end
  if due ~= rows.number then rows.number, rows.text = due, ms(due) end
  shares_work.add_row(rows, id, rows.text, topic, key)
  if not s.least_ready or due < s.least_ready then s.least_ready = due end
end

function shares.write_waiting(s)
  local rows, nexts = s.waiting_rows, {}
  enqueue(s, rows)
  for _, topic in ipairs(rows.order) do
    local keys = rows.keys[topic]
    for _, key in ipairs(keys) do
      local at = #nexts
      nexts[at + 1], nexts[at + 2] = keys[key], topic .. '\0' .. key
    end
  end
  redis.call('ZADD', s.prefix .. 'fairnext', 'LT', unpack(nexts))
  s.waiting_rows, s.least_ready = nil, nil
end

-- Removes an id that no longer waits from the queue of its key. If the key of the id was changed meanwhile, the old
-- entry stays in its queue until a claim reads it.
function shares.dropped(s, id, due)
  local rec = redis.call('HGET', s.K[BODY], id)
  local topic, refs = parse(rec or '')
  if not topic then return end
  local entry = shares_work.key_of(refs) .. '\0' .. string.format('%016d', tonumber(due)) .. id
  redis.call('ZREM', s.prefix .. 'fairqueue:' .. topic, entry)
end

-- Moves these ids from `due` to `ready` and to the queues of their keys. `first`: whether they are the first ids of
-- `due`.
function shares_work.make_ready(s, rows, first)
  if #rows.ids == 0 then return end
  if first then
    redis.call('ZREMRANGEBYRANK', s.K[DUE], 0, #rows.ids - 1)
  else
    redis.call('ZREM', s.K[DUE], unpack(rows.ids))
  end
  enqueue(s, rows)
  for _, topic in ipairs(rows.order) do shares_work.join(s, topic, rows.keys[topic]) end
end

-- Answers the parts of a record: {topic, fair key, refs with an index or false, at = where its body starts}; nil when
-- it cannot be read. Many records of a call start with the same bytes: everything before the body. The call keeps the
-- parts of each such start, and parses a record only when its start is new.
local MOST_STARTS, MOST_SIZES = 200, 3
function shares_work.parts_of(s, rec)
  local starts = s.starts
  if not starts then
    starts = {count = 0, sizes = {}, by_size = {}}
    s.starts = starts
  end
  for i, size in ipairs(starts.sizes) do
    local found = starts.by_size[i][string.sub(rec, 1, size)]
    if found then return found end
  end
  local topic, refs, _, at = parse(rec)
  if not topic then return nil end
  local found = {topic = topic, key = shares_work.key_of(refs), refs = indexed(refs) or false, at = at}
  if starts.count < MOST_STARTS then
    local place
    for i, size in ipairs(starts.sizes) do place = size == at - 1 and i or place end
    if not place and #starts.sizes < MOST_SIZES then
      place = #starts.sizes + 1
      starts.sizes[place], starts.by_size[place] = at - 1, {}
    end
    if place then
      starts.count, starts.by_size[place][string.sub(rec, 1, at - 1)] = starts.count + 1, found
    end
  end
  return found
end

-- Looks at a page of ids and scores, until it has read BYTES of records or seen OTHERS ids of other topics. Adds the
-- fair ones to `rows`. Answers how many ids were looked at, and how many of these are of other topics.
local function look(s, found, rows)
  local n, bytes, others, looked, parts_of = #found / 2, 0, 0, 0, shares_work.parts_of
  while looked < n and bytes < BYTES and others < OTHERS do
    local part, first = {}, looked
    for i = first + 1, math.min(first + PART, n) do part[i - first] = found[2 * i - 1] end
    for i, rec in ipairs(redis.call('HMGET', s.K[BODY], unpack(part))) do
      looked = first + i
      local parts = rec and parts_of(s, rec)
      if parts then bytes = bytes + #rec - parts.at + 1 end
      if parts and shares_work.settings_of(s, parts.topic) then
        shares_work.add_row(rows, part[i], found[2 * looked], parts.topic, parts.key)
      else
        others = others + 1
      end
    end
  end
  return looked, others
end

-- Finds overdue ids of fair topics. Each call looks at some ids from where the last call stopped. When it does not
-- reach the end, it also looks at the newest overdue ids, so it finds a key that still gets new ids at once. Answers
-- whether the next call is likely to find more.
function shares_work.prepare(s, until_ms)
  local score, last = string.match(redis.call('HGET', s.K[META], 'fair_at') or '', '^([^:]+):(.*)$')
  local found = page_behind(s.K[DUE], '-inf', until_ms, last or '', score or '0', STEP)
  local rows = shares_work.new_rows()
  local looked, others = look(s, found, rows)
  local first, moved, more = not score and others == 0, #rows.ids > 0, false
  if looked < #found / 2 or looked == STEP then
    local newest = redis.call('ZREVRANGEBYSCORE', s.K[DUE], until_ms, '-inf', 'WITHSCORES', 'LIMIT', 0, NEWEST)
    local behind_these = {}
    for i = 1, #newest, 2 do
      local due, here = tonumber(newest[i + 1]), tonumber(found[2 * looked])
      if due > here or due == here and behind(newest[i], found[2 * looked - 1]) then
        behind_these[#behind_these + 1], behind_these[#behind_these + 2] = newest[i], newest[i + 1]
      end
    end
    if first then                -- the ids at the front leave by rank, which is cheaper
      shares_work.make_ready(s, rows, true)
      rows = shares_work.new_rows()
    end
    first = false
    look(s, behind_these, rows)
    more = moved or #rows.ids > 0
    if score or others > 0 then
      redis.call('HSET', s.K[META], 'fair_at', found[2 * looked] .. ':' .. found[2 * looked - 1])
    end
  elseif score then
    redis.call('HDEL', s.K[META], 'fair_at')
  end
  shares_work.make_ready(s, rows, first)
  return more
end
end
