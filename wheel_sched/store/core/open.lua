#!lua flags=allow-oom
-- Creates the shard. When the shard exists, the call changes nothing and answers the stored values.
-- ARGV[3] -> schema version   ARGV[4] -> shard count   ARGV[5] -> clock: "server" or "test"
-- Answers {schema, shards, clock, epoch, server time (us)} as stored.
local K = KEYS
local now = redis.call('TIME')
if redis.call('EXISTS', K[META]) == 0 then
  redis.call('HSET', K[META], 'schema', ARGV[3], 'shards', ARGV[4], 'clock', ARGV[5], 'epoch', 1, 'last', 0)
end
local m = redis.call('HMGET', K[META], 'schema', 'shards', 'clock', 'epoch')
return {m[1], m[2], m[3], m[4], tonumber(now[1]) * 1000000 + tonumber(now[2])}
