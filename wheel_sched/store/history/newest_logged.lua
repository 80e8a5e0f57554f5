#!lua flags=no-writes
-- One page of the history of the shard, newest first. Writes nothing.
-- ARGV[3] -> last position (id of a stream entry) of the page before ("" = from the end)   ARGV[4] -> limit
-- Answers {now (us), positions, entries}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local start = ARGV[3] == '' and '+' or '(' .. ARGV[3]
local most = math.min(tonumber(ARGV[4]), 2 * MAX_BATCH)
local found = redis.call('XREVRANGE', s.prefix .. 'log', start, '-', 'COUNT', most)
local places, entries = {}, {}
for i, entry in ipairs(found) do places[i], entries[i] = entry[1], entry[2][2] end
return {s.us, places, entries}
