-- Ordering keys: changes a key when the core gives up or restores an item. key_lock.lua describes the Redis keys.
room_keys[#room_keys + 1] = 'locks'
room_keys[#room_keys + 1] = 'owners'
room_keys[#room_keys + 1] = 'done'
room_keys[#room_keys + 1] = 'given_up'

-- The next parked id of a key becomes its head, due at once; without a parked id the key opens.
local function next_of_key(s, lock, label)
  local queue = s.prefix .. 'key:' .. lock
  while true do
    local id = redis.call('ZRANGE', queue, 0, 0)[1]
    if not id then
      redis.call('HDEL', s.prefix .. 'locks', lock)
      return
    end
    redis.call('ZREM', queue, id)
    local why = redis.call('HGET', s.K[WHY], id)
    local reason, topic = string.match(why or '', '^(.-)\n(.*)$')
    if reason == 'ordered: key ' .. lock then   -- otherwise a person has moved it
      drop_held(s, id)
      moves(s, topic, 'held', put_waiting(s, id, s.now, topic))
      local base = string.match(id, '^(.*)%.%d+$') or id
      redis.call('HSET', s.prefix .. 'locks', lock, 'r:' .. ms(s.now) .. ':' .. #label .. ':' .. label .. base)
      return
    end
  end
end

-- The parts of a lock's value: kind (c closed by a failure, r the head was parked before), since (ms), label, id base
-- of the head.
local function lock_parts(value)
  local kind, since, length, at = string.match(value, '^(%a):(%d+):(%d+):()')
  length = tonumber(length)
  return kind, tonumber(since), string.sub(value, at, at + length - 1), string.sub(value, at + length)
end

-- Remembers for a day the id base of a message of an ordering key that has succeeded or was given up.
local function remember_end(s, ended, base)
  redis.call('ZREMRANGEBYSCORE', s.prefix .. ended, '-inf', s.now)
  redis.call('ZADD', s.prefix .. ended, s.now + 86400000, base)
end

-- Called when an item that has refs died or was cancelled. If it was the head of its ordering key, the next parked item
-- becomes the head.
local function give_way(s, id, refs)
  local lock = refs and string.match('\n' .. refs, '\nlock:([^\n]+)')
  if not lock then return end
  remember_end(s, 'given_up', string.match(id, '^(.*)%.%d+$') or id)
  redis.call('ZREM', s.prefix .. 'key:' .. lock, id)
  local value = redis.call('HGET', s.prefix .. 'locks', lock)
  if not value then return end
  local _, _, label, base = lock_parts(value)
  if string.sub(id, 1, #base + 1) == base .. '.' then next_of_key(s, lock, label) end
end

on_given_up[#on_given_up + 1] = give_way

-- When a parked item is put back, it is parked again; the head of its key is then unknown ("?").
on_restored[#on_restored + 1] = function(s, id, score, reason)
  local lock = string.match(reason, '^ordered: key (.+)$')
  if lock then
    redis.call('ZADD', s.prefix .. 'key:' .. lock, score, id)
    redis.call('HSETNX', s.prefix .. 'locks', lock, 'r:' .. ms(s.now) .. ':0:?')
  end
end
