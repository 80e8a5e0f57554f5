#!lua flags=allow-oom
-- Announces a member, or announces it again: its lease then ends later, and its record replaces the one before. The
-- script also works on a full server: a record is small, and it is removed when the lease has ended.
-- ARGV[3] -> id   ARGV[4] -> lease (ms)   ARGV[5] -> how long the member runs already (ms)   ARGV[6] -> record
-- Answers the end of the lease (ms).
local s = begin(KEYS, ARGV)
if s.err then return s end
local members, announced = s.prefix .. 'members', s.prefix .. 'announced'
forget_members(s)
local id, ends = ARGV[3], s.now + tonumber(ARGV[4])
local since = string.match(redis.call('HGET', announced, id) or '', '^(%d+):')
since = since or ms(math.max(0, s.now - tonumber(ARGV[5])))
redis.call('ZADD', members, ms(ends), id)
redis.call('HSET', announced, id, since .. ':' .. ms(s.now) .. ':' .. ARGV[6])
if s.meta[1] ~= 'test' then          -- the server's own clock: the keys expire when the last lease has ended
  local left = tonumber(redis.call('ZRANGE', members, -1, -1, 'WITHSCORES')[2]) - s.now
  for _, key in ipairs({members, announced}) do redis.call('PEXPIRE', key, ms(left + 1000)) end
end
return ends
