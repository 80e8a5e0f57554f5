-- One page of ids of a state, in order of score. Writes nothing.
-- ARGV[3] -> state: due, fly, held or dead   ARGV[4] -> least score   ARGV[5] -> greatest score
-- ARGV[6] -> id of the last page's end ("" = from the start)   ARGV[7] -> its score   ARGV[8] -> limit
-- Answers {now (us), id, score, ...}.
local s = begin(KEYS, ARGV, true)
if s.err then return s end
local function behind(a, b)            -- by bytes: Lua's own < goes by the server's locale
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end
local key = ({due = KEYS[DUE], fly = KEYS[FLY], held = KEYS[HELD], dead = KEYS[DEAD]})[ARGV[3]]
local last, limit = ARGV[6], math.min(tonumber(ARGV[8]), MAX_BATCH)
local least, greatest = ARGV[4], ARGV[5]
local reply = {s.us}
local offset = 0
if last ~= '' then
  -- behind the last id: everything above its score, and of its equals those that sort behind it
  least = ARGV[7]
  local rank = redis.call('ZRANK', key, last)
  if rank and tonumber(redis.call('ZSCORE', key, last)) == tonumber(least) then
    offset = rank - redis.call('ZCOUNT', key, '-inf', '(' .. least) + 1
  else
    while true do                     -- it has left: skip its equals that sort before it, a page at a time
      local equals = redis.call('ZRANGEBYSCORE', key, least, least, 'LIMIT', offset, MAX_BATCH)
      local skipped = 0
      for _, id in ipairs(equals) do if not behind(id, last) then skipped = skipped + 1 end end
      offset = offset + skipped
      if skipped < MAX_BATCH then break end
    end
  end
end
local found = redis.call('ZRANGEBYSCORE', key, least, greatest, 'WITHSCORES', 'LIMIT', offset, limit)
for i = 1, #found, 2 do
  reply[#reply + 1] = found[i]
  reply[#reply + 1] = tonumber(found[i + 1])
end
return reply
