#!lua flags=no-writes
-- One page of a collection, in order of the last put, newest first. Writes nothing.
-- ARGV[3] -> collection   ARGV[4] -> version behind which the page starts ("" = from the newest)   ARGV[5] -> limit
-- Answers {version behind which the next page starts (0 = there is none), {id, version, time of the put (ms), value,
-- expiry (ms, 0 = none)}, ...}. A page ends early when its values have a megabyte together.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local limit, bytes = math.min(tonumber(ARGV[5]), MAX_BATCH), 0
local behind_version = ARGV[4] == '' and '+inf' or '(' .. ARGV[4]
local found = redis.call('ZREVRANGEBYSCORE', s.prefix .. 'docorder:' .. ARGV[3], behind_version, '-inf', 'WITHSCORES',
                         'LIMIT', 0, limit + 1)
local reply = {0}
for at = 1, #found, 2 do
  if at > 2 * limit or bytes >= 1048576 then
    reply[1] = tonumber(found[at - 1])
    break
  end
  local version, put, ends, value = document_of(s, redis.call('HGET', s.prefix .. 'docs:' .. ARGV[3], found[at]))
  if version then
    reply[#reply + 1] = {found[at], tonumber(version), tonumber(put), value, tonumber(ends)}
    bytes = bytes + #value
  end
end
return reply
