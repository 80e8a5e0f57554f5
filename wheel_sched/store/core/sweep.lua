#!lua flags=allow-oom
-- Cleans up in bounded steps: recovers expired leases, removes dead letters above the caps, and calls the rooms' hooks.
-- ARGV[3] -> greatest number of dead letters (0 = any)   ARGV[4] -> their greatest age (ms, 0 = any)
-- ARGV[5] -> an item dies when its lease has run out this often (0 = never)
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
