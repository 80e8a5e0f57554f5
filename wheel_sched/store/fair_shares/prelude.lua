-- Fair shares: due ids of a fair topic go out by weighted shares between its keys, not by due time alone.
--   ready                ZSET  id -> due (ms): waiting ids of fair topics, which are not in `due`
--   fairqueue:<topic>    ZSET  0 for each <key>\0<due, 16 digits><id>: the same ids by key and due. An entry whose id is
--                              not in `ready` with this due is stale: the next call that reads it removes it
--   fairqueues           SET   topics that have, or had, a queue
--   fairnext             ZSET  <topic>\0<key> -> when the key joins the ring (ms): not later than its first id is due. A
--                              key in the ring, or one that a limit holds back, may have no such entry
--   fairring:<topic>     ZSET  key -> virtual time: the keys that may go on
--   fairturns            ZSET  topic -> turn in which it was last served: the topics that have a ring and may go on
--   fairtopics           HASH  topic -> settings, see `settings_of`
--   fairweights:<topic>  HASH  key -> cost of an id, for keys that have a weight of their own
--   fairwait             ZSET  <topic>\0<key> or <topic> -> when it may go on (ms): held back by a rate
--   fairtat              ZSET  <topic>\0<key> or <topic> -> state of its rate: theoretical arrival time of GCRA (us)
--   fairplaces           HASH  id -> <s|r><topic>\0<key>: an id that takes a place of its key's `max_in_flight`
--   fairuntil            ZSET  id -> until when it takes the place (ms)
--   fairbusy             HASH  <topic>\0<key> -> number of places taken
-- and in meta: fair_at (where the search for overdue ids goes on), fair_turn (number of the last claim that had to
-- share), fair_rest (turn in which topics without fair shares were last served).
-- The key of an id is in its record, as the ref fair:<key>; without this ref it is ''.
--
-- A new id of a fair topic that is due within a minute waits in `ready` and in the queue of its key from the start.
-- Every other id waits in `due`: an id that is due later, an id that was stored before its topic was fair, and an id
-- that comes back (its lease ran out, or it was resumed or rescheduled). When it is overdue, a claim finds it there and
-- moves it.
--
-- Virtual time (start-time fair queueing): the key with the least virtual time is next, and then its time grows by the
-- cost of an id, which is in inverse proportion to its weight. A key that joins starts at the least time in the ring. A
-- key whose queue is empty stays in the ring until its time is the least, so it gains nothing by leaving.
local shares_work = {}         -- the functions that the parts of this room share
do
local NAMES = {'ready', 'fairturns', 'fairtopics', 'fairwait', 'fairtat', 'fairplaces', 'fairuntil', 'fairbusy',
               'fairnext', 'fairqueues'}
for i = 1, #NAMES do room_keys[#room_keys + 1] = NAMES[i] end
on_drop[#on_drop + 1] = function(s)
  local topics = redis.call('HKEYS', s.prefix .. 'fairtopics')
  for _, topic in ipairs(redis.call('SMEMBERS', s.prefix .. 'fairqueues')) do topics[#topics + 1] = topic end
  for _, topic in ipairs(topics) do
    redis.call('DEL', s.prefix .. 'fairqueue:' .. topic, s.prefix .. 'fairring:' .. topic,
               s.prefix .. 'fairweights:' .. topic)
  end
end

local FEW = 100                -- how many of the keys and ids whose time has come a call wakes

-- The topic and the key of a name <topic>\0<key>; no key when the name is a topic.
local function parts_of(name)
  local at = string.find(name, '\0', 1, true)
  if not at then return name end
  return string.sub(name, 1, at - 1), string.sub(name, at + 1)
end

function shares_work.key_of(refs)
  if not refs then return '' end
  return string.match(refs, '^fair:([^\n]*)') or string.match(refs, '\nfair:([^\n]*)') or ''
end

-- Settings of a topic: <cost> <places, 0 = any> <how long a place is taken (ms)> <s: until it is settled, r: until it is
-- reported> <1 = keys have weights> <interval of a key (us), 0 = none> <burst> <interval of the topic> <burst>
local NONE = {cost = 10000, cap = 0, interval = 0, topic_interval = 0}
function shares_work.settings_of(s, topic)
  s.fair_topics = s.fair_topics or {}
  local found = s.fair_topics[topic]
  if found == nil then
    local text = redis.call('HGET', s.prefix .. 'fairtopics', topic)
    found = false
    if text then
      local cost, cap, ttl, mode, weights, interval, burst, topic_interval, topic_burst =
        string.match(text, '^(%d+) (%d+) (%d+) ([sr]) ([01]) (%d+) (%d+) (%d+) (%d+)$')
      found = {cost = tonumber(cost), cap = tonumber(cap), ttl = tonumber(ttl), mode = mode, weights = weights == '1',
               interval = tonumber(interval), burst = tonumber(burst), topic_interval = tonumber(topic_interval),
               topic_burst = tonumber(topic_burst)}
    end
    s.fair_topics[topic] = found
  end
  return found
end
function shares_work.settings_or_none(s, topic) return shares_work.settings_of(s, topic) or NONE end

-- Lets keys of a topic join its ring, except those that a limit holds back. Answers how many have joined.
function shares_work.join(s, topic, keys)
  local settings, names, waits, busy = shares_work.settings_or_none(s, topic), {}, {}, {}
  for i, key in ipairs(keys) do names[i] = topic .. '\0' .. key end
  if settings.interval > 0 then waits = redis.call('ZMSCORE', s.prefix .. 'fairwait', unpack(names)) end
  if settings.cap > 0 then busy = redis.call('HMGET', s.prefix .. 'fairbusy', unpack(names)) end
  local ring, added = s.prefix .. 'fairring:' .. topic, {}
  local start = redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES')[2]
  local fresh = not start
  start = start or '0'
  for i, key in ipairs(keys) do
    if not waits[i] and (settings.cap == 0 or tonumber(busy[i] or '0') < settings.cap) then
      added[#added + 1], added[#added + 2] = start, key
    end
  end
  if #added == 0 then return 0 end
  -- a long member makes the new ring an indexed set: in a list, each look-up passes up to 128 keys
  if fresh then redis.call('ZADD', ring, 0, PAD) end
  local joined = redis.call('ZADD', ring, 'NX', unpack(added))
  if fresh then redis.call('ZREM', ring, PAD) end
  if settings.topic_interval == 0 or not redis.call('ZSCORE', s.prefix .. 'fairwait', topic) then
    local turn = redis.call('HGET', s.K[META], 'fair_turn') or '0'
    redis.call('ZADD', s.prefix .. 'fairturns', 'NX', turn, topic)
  end
  return joined
end

-- Frees the places of these ids. Answers how many keys have joined a ring because of it.
function shares_work.free(s, ids, values)
  local freed, joined = {}, 0
  for i, id in ipairs(ids) do
    local value = values[i]
    if value then
      freed[#freed + 1] = id
      local name = string.sub(value, 2)
      if redis.call('HINCRBY', s.prefix .. 'fairbusy', name, -1) <= 0 then
        redis.call('HDEL', s.prefix .. 'fairbusy', name)
      end
      local topic, key = parts_of(name)
      if key and #redis.call('ZRANGEBYLEX', s.prefix .. 'fairqueue:' .. topic, '[' .. key .. '\0', '(' .. key .. '\1',
                               'LIMIT', 0, 1) > 0 then
        joined = joined + shares_work.join(s, topic, {key})
      end
    end
  end
  if #freed > 0 then
    redis.call('HDEL', s.prefix .. 'fairplaces', unpack(freed))
    redis.call('ZREM', s.prefix .. 'fairuntil', unpack(freed))
  end
  return joined
end

-- Gives an id one of the places of its key. An id that has a place already only keeps it longer.
function shares_work.occupy(s, id, topic, key)
  local settings = shares_work.settings_or_none(s, topic)
  if settings.cap == 0 then return end
  local name = topic .. '\0' .. key
  if redis.call('HSETNX', s.prefix .. 'fairplaces', id, settings.mode .. name) == 1 then
    redis.call('HINCRBY', s.prefix .. 'fairbusy', name, 1)
  end
  redis.call('ZADD', s.prefix .. 'fairuntil', s.now + settings.ttl, id)
end

-- Lets up to `most` keys whose next id is due join their rings.
local function wake_due(s, most)
  local due = s.prefix .. 'fairnext'
  local names = redis.call('ZRANGEBYSCORE', due, '-inf', s.now, 'LIMIT', 0, most)
  if #names == 0 then return end
  redis.call('ZREM', due, unpack(names))
  local keys, order = {}, {}
  for _, name in ipairs(names) do
    local topic, key = parts_of(name)
    if not keys[topic] then keys[topic], order[#order + 1] = {}, topic end
    local of_topic = keys[topic]
    of_topic[#of_topic + 1] = key
  end
  for _, topic in ipairs(order) do shares_work.join(s, topic, keys[topic]) end
end

-- Lets keys and topics whose time has come go on, and frees places that were taken for too long. `n`: how many ids the
-- call wants. It lets at least as many keys join, because each may have one id only.
function shares_work.wake(s, n)
  wake_due(s, math.max(FEW, n))
  local wait = s.prefix .. 'fairwait'
  local names = redis.call('ZRANGEBYSCORE', wait, '-inf', s.now, 'LIMIT', 0, FEW)
  if #names > 0 then
    redis.call('ZREM', wait, unpack(names))
    for _, name in ipairs(names) do
      local topic, key = parts_of(name)
      if key then
        shares_work.join(s, topic, {key})
      elseif redis.call('EXISTS', s.prefix .. 'fairring:' .. name) == 1 then
        local turn = redis.call('HGET', s.K[META], 'fair_turn') or '0'
        redis.call('ZADD', s.prefix .. 'fairturns', 'NX', turn, name)
      end
    end
  end
  local ids = redis.call('ZRANGEBYSCORE', s.prefix .. 'fairuntil', '-inf', s.now, 'LIMIT', 0, FEW)
  if #ids > 0 then shares_work.free(s, ids, redis.call('HMGET', s.prefix .. 'fairplaces', unpack(ids))) end
  local paid = redis.call('ZRANGEBYSCORE', s.prefix .. 'fairtat', '-inf', s.us, 'LIMIT', 0, FEW)
  if #paid > 0 then redis.call('ZREM', s.prefix .. 'fairtat', unpack(paid)) end
end

function shares.ended(s, ids, published)
  if redis.call('EXISTS', s.prefix .. 'fairplaces') == 0 then return end
  local values = redis.call('HMGET', s.prefix .. 'fairplaces', unpack(ids))
  for i, id in ipairs(ids) do   -- a published message takes its place until its consumer reports the end of the attempt
    if values[i] and published[id] and string.sub(values[i], 1, 1) == 'r' then values[i] = false end
  end
  shares_work.free(s, ids, values)
end

function shares.renamed(s, id, other)
  local value = redis.call('HGET', s.prefix .. 'fairplaces', id)
  if not value then return end
  redis.call('HSET', s.prefix .. 'fairplaces', other, value)
  redis.call('ZADD', s.prefix .. 'fairuntil', redis.call('ZSCORE', s.prefix .. 'fairuntil', id), other)
  redis.call('HDEL', s.prefix .. 'fairplaces', id)
  redis.call('ZREM', s.prefix .. 'fairuntil', id)
end

-- Gives the place of an id to another id, or lets the same id keep it for longer. Answers whether the id had a place. An
-- id that has a place already takes no second one.
function shares_work.carry(s, id, other)
  local value = redis.call('HGET', s.prefix .. 'fairplaces', id)
  if not value or (id ~= other and redis.call('HEXISTS', s.prefix .. 'fairplaces', other) == 1) then return false end
  if id ~= other then shares.renamed(s, id, other) end
  local settings = shares_work.settings_of(s, (parts_of(string.sub(value, 2))))
  if settings then redis.call('ZADD', s.prefix .. 'fairuntil', s.now + settings.ttl, other) end
  return true
end

function shares.head(s, head)
  if redis.call('ZCARD', s.prefix .. 'fairturns') > 0 then
    return head >= 0 and math.min(head, s.now) or s.now
  end
  for _, name in ipairs({'fairwait', 'fairuntil', 'fairnext'}) do
    local first = first_score(s.prefix .. name)
    if first >= 0 and (head < 0 or first < head) then head = first end
  end
  return head
end
end
