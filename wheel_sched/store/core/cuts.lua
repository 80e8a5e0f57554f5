#!lua flags=no-writes
-- Scores that cut a state into parts of about the same size, so that several readers can share it. Writes nothing.
-- ARGV[3] -> state: due, leased, held or dead   ARGV[4] -> least score   ARGV[5] -> greatest score
-- ARGV[6] -> ids per part, about   ARGV[7] -> greatest number of parts
-- Answers {now (us), how many ids there are, the first score of the second part (text), of the third, ...}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local key = KEYS[PLACES[ARGV[3]]]
local count, all = redis.call('ZCOUNT', key, ARGV[4], ARGV[5]), nil
all = count
if ARGV[3] == 'due' and s.ready then
  local more = redis.call('ZCOUNT', s.ready, ARGV[4], ARGV[5])
  all = count + more
  if more > count then key, count = s.ready, more end   -- the larger set says where to cut
end
local parts = math.min(math.ceil(all / tonumber(ARGV[6])), tonumber(ARGV[7]))
local reply = {s.us, all}
if parts > 1 then
  local before = redis.call('ZCOUNT', key, '-inf', '(' .. ARGV[4])
  for part = 1, parts - 1 do
    local rank = before + math.floor(count * part / parts)
    reply[#reply + 1] = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2]
  end
end
return reply
