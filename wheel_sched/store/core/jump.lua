#!lua flags=allow-oom
-- Records a step of the server's clock and raises the epoch. A dispatcher found the step: it compares the server's
-- clock with its own monotonic clock. Only the first report of an epoch counts.
-- ARGV[3] -> epoch in which the dispatcher saw the step   ARGV[4] -> step (ms, signed)
-- Answers {now (us), epoch}.
local s = begin(KEYS, ARGV)
if s.err then return s end
if tonumber(ARGV[3]) == s.epoch then
  s.epoch = redis.call('HINCRBY', KEYS[META], 'epoch', 1)
  redis.call('HINCRBY', KEYS[META], 'jumps', 1)
  redis.call('HSET', KEYS[META], 'last_jump', ARGV[4])
end
return {s.us, s.epoch}
