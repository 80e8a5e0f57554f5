#!lua flags=no-writes
-- One page of a state with its records, in order of score, for callers that read everything. Writes nothing.
-- ARGV[3] -> state: due, leased, held or dead   ARGV[4] -> least score   ARGV[5] -> greatest score
-- ARGV[6] -> last id of the page before ("" = from the start)   ARGV[7] -> score of that id   ARGV[8] -> limit
-- ARGV[9] -> "1" = with records and reasons, "0" = only ids and scores
-- Answers {now (us), ids, scores (text), records, reasons}; the last two are empty when the call asks for no records.
-- A record of a dead id starts with <length of reason>:<reason>. The reason of an id in flight is its value in `claim`,
-- the reason of a held id is its value in `why`.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local found = page_of(s, ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8]))
local ids, scores, records, reasons = {}, {}, {}, {}
for i = 1, #found, 2 do
  ids[(i + 1) / 2], scores[(i + 1) / 2] = found[i], found[i + 1]
end
if ARGV[9] == '1' and #ids > 0 then
  records = redis.call('HMGET', KEYS[ARGV[3] == 'dead' and DEADBODY or BODY], unpack(ids))
  if ARGV[3] == 'leased' then reasons = redis.call('HMGET', KEYS[CLAIM], unpack(ids)) end
  if ARGV[3] == 'held' then reasons = redis.call('HMGET', KEYS[WHY], unpack(ids)) end
end
return {s.us, ids, scores, records, reasons}
