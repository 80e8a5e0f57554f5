#!lua flags=allow-oom
-- Cleans up in bounded steps: recovers expired leases, removes dead letters above the caps, and calls the rooms' hooks.
-- ARGV[3] -> cap of the dead (0 = none)   ARGV[4] -> greatest age of the dead (ms, 0 = none)
-- ARGV[5] -> lapses until an item is poison (0 = never)
-- Answers {now (us), epoch, head of due, head of leased, recovered}.
local s = begin(KEYS, ARGV)
if s.err then return s end
local recovered = recover(s, MAX_BATCH, tonumber(ARGV[5]))
trim_dead_above(s, tonumber(ARGV[3]))
local age = tonumber(ARGV[4])
if age > 0 then
  trim_dead(s, redis.call('ZRANGEBYSCORE', KEYS[DEAD], '-inf', s.now - age, 'LIMIT', 0, MAX_BATCH))
end
call_all(on_sweep, s)
local due_head, lease_head = finish(s)
return {s.us, s.epoch, due_head, lease_head, recovered}
