-- Ordering keys: what happens to a key when an item leaves for a reason that gate.lua does not see. Keys: see gate.lua.
room_keys[#room_keys + 1] = 'gates'
room_keys[#room_keys + 1] = 'owners'
room_keys[#room_keys + 1] = 'done'
room_keys[#room_keys + 1] = 'gaveup'

-- The next parked id of a key becomes its head, due at once; without a parked id the key opens.
local function next_of_key(s, gate, label)
  local queue = s.base .. 'key:' .. gate
  while true do
    local id = redis.call('ZRANGE', queue, 0, 0)[1]
    if not id then
      redis.call('HDEL', s.base .. 'gates', gate)
      return
    end
    redis.call('ZREM', queue, id)
    local why = redis.call('HGET', s.K[WHY], id)
    local reason, topic = string.match(why or '', '^(.-)\n(.*)$')
    if reason == 'ordered: key ' .. gate then   -- else somebody has moved it by hand: it no longer stands in line
      drop_held(s, id)
      moves(s, topic, 'held', put_waiting(s, id, s.now, topic))
      local stem = string.match(id, '^(.*)%.%d+$') or id
      redis.call('HSET', s.base .. 'gates', gate, 'r:' .. ms(s.now) .. ':' .. #label .. ':' .. label .. stem)
      return
    end
  end
end

-- The parts of a gate's value: kind (c closed by a failure, r released from the line), since (ms), label, head's stem.
local function gate_parts(value)
  local kind, since, length, at = string.match(value, '^(%a):(%d+):(%d+):()')
  length = tonumber(length)
  return kind, tonumber(since), string.sub(value, at, at + length - 1), string.sub(value, at + length)
end

-- A message of an ordering key is through, or given up: for a day its stem is known.
local function has_come_to_its_end(s, ended, stem)
  redis.call('ZREMRANGEBYSCORE', s.base .. ended, '-inf', s.now)
  redis.call('ZADD', s.base .. ended, s.now + 86400000, stem)
end

-- An item with refs is given up (dead or cancelled): when it is the head of its ordering key, the next one follows.
local function give_way(s, id, refs)
  local gate = refs and string.match('\n' .. refs, '\ngate:([^\n]+)')
  if not gate then return end
  has_come_to_its_end(s, 'gaveup', string.match(id, '^(.*)%.%d+$') or id)
  redis.call('ZREM', s.base .. 'key:' .. gate, id)
  local value = redis.call('HGET', s.base .. 'gates', gate)
  if not value then return end
  local _, _, label, stem = gate_parts(value)
  if string.sub(id, 1, #stem + 1) == stem .. '.' then next_of_key(s, gate, label) end
end

on_given_up[#on_given_up + 1] = give_way

-- A parked item that was put back is parked again, behind a head that nobody knows any more.
on_restored[#on_restored + 1] = function(s, id, score, reason)
  local gate = string.match(reason, '^ordered: key (.+)$')
  if gate then
    redis.call('ZADD', s.base .. 'key:' .. gate, score, id)
    redis.call('HSETNX', s.base .. 'gates', gate, 'r:' .. ms(s.now) .. ':0:?')
  end
end
