-- Dead letters: how items die, are trimmed and leave. The twins are methods of `MemoryShard`, and `burying.py`.

-- Stores a dead letter and calls the hooks. The hooks answer a mark: zeros, which are stored before the length of the
-- reason. When the letter leaves, the mark tells the hooks of on_dead_gone that the hooks of on_died have counted it. A
-- letter that an older release has buried has no mark. Both lists of hooks get the topic of the record, '' when it
-- cannot be read. Answers the refs.
local function bury(s, id, rec, topic, reason, died)
  local mark, own, refs = '', parse(rec)
  for i = 1, #on_died do mark = on_died[i](s, id, refs, own or '', reason, died) or mark end
  redis.call('ZADD', s.K[DEAD], died, id)
  redis.call('HSET', s.K[DEADBODY], id, mark .. #reason .. ':' .. reason .. rec)
  event(s, 'died', topic)
  return refs
end

-- Takes apart a value of `deadbody`. Answers record, reason and mark; for an unreadable value all three are empty.
local function dead_parts(value)
  local mark, length, at = string.match(value, '^(0*)(%d+):()')
  if not mark then return '', '', '' end
  local stop = at + tonumber(length)
  return string.sub(value, stop), string.sub(value, at, stop - 1), mark
end

-- Calls the hooks for a dead letter that leaves. `value` is what `deadbody` has for it. Answers record, topic ('' when
-- it cannot be read), refs and version.
local function unearth(s, id, value, lifted)
  local rec, reason, mark = dead_parts(value)
  local topic, refs, version = parse(rec)
  call_all(on_dead_gone, s, id, refs, topic or '', reason, mark, lifted)
  return rec, topic or '', refs, version
end

local function put_dead(s, id, rec, topic, reason)
  local refs = bury(s, id, rec, topic, reason, s.now)
  if refs then call_all(on_given_up, s, id, refs) end
end

local function trim_dead(s, ids)
  if #ids == 0 then return end
  local values = redis.call('HMGET', s.K[DEADBODY], unpack(ids))
  for i, id in ipairs(ids) do
    local _, topic, refs = unearth(s, id, values[i] or '')
    if refs then refs_of(s, refs, id, 'SREM') end
    moves(s, topic, 'dead', nil)
    event(s, 'trimmed', topic)
  end
  redis.call('ZREM', s.K[DEAD], unpack(ids))
  redis.call('HDEL', s.K[DEADBODY], unpack(ids))
end

-- Removes the oldest dead letters above `cap`, at most MAX_BATCH a call; cap 0 = unlimited.
local function trim_dead_above(s, cap)
  if cap <= 0 then return end
  local over = redis.call('ZCARD', s.K[DEAD]) - cap
  if over > 0 then trim_dead(s, redis.call('ZRANGE', s.K[DEAD], 0, math.min(over, MAX_BATCH) - 1)) end
end

-- Removes the record of an id that leaves the store or dies.
local function drop_record(s, id)
  redis.call('HDEL', s.K[BODY], id)
  redis.call('HDEL', s.K[LAPSED], id)
end

-- Ends the claim of an id that nobody has settled. The id waits again, or dies when its lease has run out `cap`
-- times (0 = never).
local function lapse(s, id, due, topic, cap, what)
  local lapses = redis.call('HINCRBY', s.K[LAPSED], id, 1)
  event(s, 'lapsed', topic)
  if s.ready then shares.ended(s, {id}, {}) end
  if cap > 0 and lapses >= cap then
    local rec = redis.call('HGET', s.K[BODY], id) or ''
    put_dead(s, id, rec, topic, 'poison: ' .. what .. ' ' .. lapses .. ' times')
    drop_record(s, id)
    moves(s, topic, 'leased', 'dead')
  else
    moves(s, topic, 'leased', put_waiting(s, id, tonumber(due), topic))
  end
end

-- Recovers ids whose lease ran out (see `lapse`). A cancelled id leaves.
local function recover(s, limit, cap)
  local ids = redis.call('ZRANGEBYSCORE', s.K[LEASED], '-inf', s.now, 'LIMIT', 0, limit)
  if #ids == 0 then return 0 end
  local claims = redis.call('HMGET', s.K[CLAIM], unpack(ids))
  for i, id in ipairs(ids) do
    local cut, due, topic = string.match(claims[i] or '', '^(!?)%d+:(%d+):[r-]:(.*)$')
    if cut == '!' then
      local rec = redis.call('HGET', s.K[BODY], id)
      if rec then cancelled(s, id, rec) end
      if s.ready then shares.ended(s, {id}, {}) end
      drop_record(s, id)
      call_all(on_free, s, id, topic)
      moves(s, topic, 'leased', nil)
      event(s, 'cancelled', topic)
    elseif due then
      lapse(s, id, due, topic, cap, 'its lease ran out')
    end
  end
  redis.call('ZREM', s.K[LEASED], unpack(ids))
  redis.call('HDEL', s.K[CLAIM], unpack(ids))
  return #ids
end
