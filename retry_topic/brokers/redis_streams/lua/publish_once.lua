-- Append an entry unless one was appended under the same id within the window, so that a publish may be repeated.
-- KEYS[1] -> the topic's stream
-- KEYS[2] -> the id's mark, of the same slot
-- ARGV[1] -> 'NOMKSTREAM', or '' when publishing may create the stream
-- ARGV[2] -> how long the id is known (ms)
-- ARGV[3..] -> fields and values
-- Answers 'done', 'unknown' (no such stream) or the error's text.
if redis.call('EXISTS', KEYS[2]) == 1 then
    return 'done'
end
local added
if ARGV[1] == '' then
    added = redis.pcall('XADD', KEYS[1], '*', unpack(ARGV, 3))
else
    added = redis.pcall('XADD', KEYS[1], 'NOMKSTREAM', '*', unpack(ARGV, 3))
end
if not added then
    return 'unknown'
end
if type(added) == 'table' then
    return added.err
end
redis.call('SET', KEYS[2], added, 'PX', ARGV[2])
return 'done'
