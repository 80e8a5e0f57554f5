#!lua flags=allow-oom
-- Closes an epoch of a writer. A later call for this epoch, or for an earlier one, stores nothing.
-- ARGV[3] -> epoch   ARGV[4] -> writer
-- Answers the writer's last closed epoch.
local s = begin(KEYS, ARGV)
if s.err then return s end
local fences, epoch, writer = s.prefix .. 'fences', tonumber(ARGV[3]), ARGV[4]
local last = tonumber(redis.call('HGET', fences, writer) or '-1')
if epoch > last then
  redis.call('HSET', fences, writer, ms(epoch))
  last = epoch
end
redis.call('UNLINK', s.prefix .. 'seen:' .. ARGV[3] .. ':' .. writer)
return last
