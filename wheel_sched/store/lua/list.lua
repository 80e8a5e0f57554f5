-- One page of ids of a state, in order of score. Writes nothing.
-- ARGV[3] -> state: due, fly, held or dead   ARGV[4] -> least score   ARGV[5] -> greatest score
-- ARGV[6] -> id of the last page's end ("" = from the start)   ARGV[7] -> its score   ARGV[8] -> limit
-- Answers {now (us), id, score, ...}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local key = ({due = KEYS[DUE], fly = KEYS[FLY], held = KEYS[HELD], dead = KEYS[DEAD]})[ARGV[3]]
local found = page_behind(key, ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8]))
local reply = {s.us}
for i = 1, #found, 2 do
  reply[#reply + 1] = found[i]
  reply[#reply + 1] = tonumber(found[i + 1])
end
return reply
