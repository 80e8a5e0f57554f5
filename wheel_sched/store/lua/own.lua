-- Owns the shard for a while: one dispatcher at a time, where it is not the store that decides what went out.
-- A new owner raises the epoch, so that its predecessor claims nothing any more.
-- ARGV[3] -> owner   ARGV[4] -> for how long from now (ms), 0 = give it up
-- Answers {1 = mine, epoch, owner, until (ms), now (us), 1 = new, number of the last claim}.
local s = begin(KEYS, ARGV)
if s.err then return s end
local mine, lease = ARGV[3], tonumber(ARGV[4])
local known = redis.call('HMGET', KEYS[META], 'owner', 'owned', 'claims')
local claims = tonumber(known[3] or '0')
local owner, owned = known[1] or '', tonumber(known[2] or '0')
if owner ~= mine and (lease == 0 or (owner ~= '' and owned > s.now)) then return {0, s.epoch, owner, owned, s.us, 0, claims} end
if lease == 0 then
  redis.call('HDEL', KEYS[META], 'owner', 'owned')
  return {0, s.epoch, '', 0, s.us, 0, claims}
end
local new = owner ~= mine
if new then s.epoch = redis.call('HINCRBY', KEYS[META], 'epoch', 1) end
redis.call('HSET', KEYS[META], 'owner', mine, 'owned', ms(s.now + lease))
return {1, s.epoch, mine, s.now + lease, s.us, new and 1 or 0, claims}
