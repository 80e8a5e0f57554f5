#!lua flags=no-writes
-- One step of a search for damage that counters and listings do not show. Writes nothing.
-- ARGV[3] -> which hash: body or deadbody   ARGV[4] -> cursor, "0" at the start   ARGV[5] -> how many to look at, about
-- Answers {next cursor ("0" = finished), ids that have a record but are in no state}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local hash, places = KEYS[BODY], {KEYS[DUE], KEYS[LEASED], KEYS[HELD], s.ready}
if ARGV[3] == 'deadbody' then hash, places = KEYS[DEADBODY], {KEYS[DEAD]} end
local step = redis.call('HSCAN', hash, ARGV[4], 'COUNT', tonumber(ARGV[5]))
local lost = {}
for i = 1, #step[2], 2 do
  local id, placed = step[2][i], false
  for _, place in ipairs(places) do placed = placed or redis.call('ZSCORE', place, id) end
  if not placed then lost[#lost + 1] = id end
end
return {step[1], lost}
