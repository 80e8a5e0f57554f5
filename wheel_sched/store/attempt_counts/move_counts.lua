#!lua flags=allow-oom
-- Moves attempt counts from one frozen shard to another. All verbs may be repeated.
-- ARGV[3] -> verb, ARGV[4..] -> its arguments:
--   put <key, score>...        raises counts (see prelude.lua)
--   remove <key>...            removes counts
-- Answers how many counts changed.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
if redis.call('HEXISTS', KEYS[META], 'frozen') == 0 then return {err = 'WSTHAWED the shard is not frozen'} end
if #ARGV - 3 > 2 * MAX_BATCH then return TOO_MANY end
local changed, counts = 0, counts_key(s)
if ARGV[3] == 'put' then
  for at = 4, #ARGV, 2 do
    -- expiry and attempts share one number; the script raises each of the two separately
    local old, new = tonumber(redis.call('ZSCORE', counts, ARGV[at]) or '0'), tonumber(ARGV[at + 1])
    local expiry = math.max(math.floor(old / 1000), math.floor(new / 1000))
    redis.call('ZADD', counts, ms(expiry * 1000 + math.max(old % 1000, new % 1000)), ARGV[at])
    changed = changed + 1
  end
else
  for at = 4, #ARGV do changed = changed + redis.call('ZREM', counts, ARGV[at]) end
end
return changed
