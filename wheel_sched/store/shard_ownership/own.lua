#!lua flags=allow-oom
-- Gives one dispatcher the shard for a while. For brokers that record which claims they have published. A new owner
-- raises the epoch, so the owner before it can claim nothing more. The step depends on the owner's name: a server that
-- has lost its last writes must not give two owners the same epoch.
-- ARGV[3] -> owner   ARGV[4] -> for how long from now (ms), 0 = give up the shard   ARGV[5] -> step of the epoch
-- Answers {1 = the caller owns the shard, epoch, owner, until (ms), now (us), 1 = a new owner, last claim number}.
local s = begin(KEYS, ARGV, LATER, 'owner', 'owned', 'claims')
if s.err then return s end
local mine, lease = ARGV[3], tonumber(ARGV[4])
local owner, owned, claims = s.meta[8] or '', tonumber(s.meta[9] or '0'), tonumber(s.meta[10] or '0')
local new = owner ~= mine
if new and (lease == 0 or (owner ~= '' and owned > s.now)) then
  write(s)
  return {0, s.epoch, owner, owned, s.us, 0, claims}
end
if lease == 0 then
  write(s)
  redis.call('HDEL', KEYS[META], 'owner', 'owned')
  return {0, s.epoch, '', 0, s.us, 0, claims}
end
if new then s.epoch = redis.call('HINCRBY', KEYS[META], 'epoch', ARGV[5]) end
set(s, 'owner', mine)
set(s, 'owned', ms(s.now + lease))
write(s)
return {1, s.epoch, mine, s.now + lease, s.us, new and 1 or 0, claims}
