-- Members: the live processes of a namespace. All lie in one shard, and each is there until its lease ends.
--   members    ZSET  id -> end of the lease (ms)
--   announced  HASH  id -> <since (ms)>:<last announcement (ms)>:<record>
room_keys[#room_keys + 1] = 'members'
room_keys[#room_keys + 1] = 'announced'

-- Removes members whose lease has ended, MAX_BATCH at most. Every announcement and every sweep calls it.
local function forget_members(s)
  local old = redis.call('ZRANGEBYSCORE', s.prefix .. 'members', '-inf', s.now, 'LIMIT', 0, MAX_BATCH)
  if #old > 0 then
    redis.call('ZREM', s.prefix .. 'members', unpack(old))
    redis.call('HDEL', s.prefix .. 'announced', unpack(old))
  end
end

on_sweep[#on_sweep + 1] = forget_members
