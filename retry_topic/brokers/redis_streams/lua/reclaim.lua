-- Take over entries that were not renewed for the given time, and return the delivery count of each. One script
-- does both, because XAUTOCLAIM raises the count but does not return it.
-- KEYS[1] -> the topic's stream
-- ARGV[1] -> group
-- ARGV[2] -> consumer that takes the entries over
-- ARGV[3] -> silent for at least (ms)
-- ARGV[4] -> cursor: the entry id to continue from (0-0: from the start)
-- ARGV[5] -> how many at most
-- Returns {next cursor, {id, fields, count}, ...}
local claimed = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5])
local answer = {claimed[1]}
for _, entry in ipairs(claimed[2]) do
    local held = redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)
    answer[#answer + 1] = {entry[1], entry[2], held[1][4]}
end
return answer
