#!lua flags=allow-oom
-- Moves the lease deadlines of a claim's ids.
-- ARGV[3] -> claim number   ARGV[4] -> lease from now (ms)   ARGV[5..] -> ids
-- Answers {codes, now (us), head of due, head of leased}; a code per id: o extended, t stale, c extended, but cancelled
-- while in flight.
local s = begin(KEYS, ARGV)
if s.err then return s end
local ids = {unpack(ARGV, 5)}
if #ids > MAX_BATCH then return TOO_MANY end
local codes, leased = {}, {}
if #ids > 0 then
  local claims = redis.call('HMGET', KEYS[CLAIM], unpack(ids))
  local deadline = s.now + tonumber(ARGV[4])
  for i, id in ipairs(ids) do
    local cut, holder = string.match(claims[i] or '', '^(!?)(%d+):')
    if holder == ARGV[3] then
      leased[#leased + 1] = deadline
      leased[#leased + 1] = id
      codes[i] = cut == '!' and 'c' or 'o'
    else
      codes[i] = 't'
    end
  end
  if #leased > 0 then redis.call('ZADD', KEYS[LEASED], 'XX', unpack(leased)) end
end
return {table.concat(codes), s.us, due_head(s), first_score(KEYS[LEASED])}
