-- Append an entry unless the stream got one under the same id within the window. So a publish may be repeated.
-- KEYS[1] -> the topic's stream
-- KEYS[2] -> the id's mark, on the same slot; its value is the id of the entry
-- ARGV[1] -> 'NOMKSTREAM', or '' when publishing may create the stream
-- ARGV[2] -> how long the mark is kept (ms)
-- ARGV[3..] -> fields and values
-- Returns 'done', 'unknown' (no such stream) or the error's text.
-- Whether this stream has the entry, or had it and has dropped it. A stream that was deleted and recreated since then
-- never had the entry. One of two signs shows this: its last id is below the entry's id, or it has dropped no entry.
-- One case remains: a stream that is deleted and recreated within a millisecond can give the same id to another entry.
-- Redis does not tell the two streams apart, so the message then counts as published.
local function held(id)
    if #redis.call('XRANGE', KEYS[1], id, id) > 0 then return true end
    if redis.call('EXISTS', KEYS[1]) == 0 then return false end
    local info, list = {}, redis.call('XINFO', 'STREAM', KEYS[1])
    for i = 1, #list, 2 do info[list[i]] = list[i + 1] end
    local ms, seq = string.match(id, '^(%d+)-(%d+)$')
    local last_ms, last_seq = string.match(info['last-generated-id'], '^(%d+)-(%d+)$')
    ms, seq, last_ms, last_seq = tonumber(ms), tonumber(seq), tonumber(last_ms), tonumber(last_seq)
    return (last_ms > ms or (last_ms == ms and last_seq >= seq)) and info['entries-added'] > info['length']
end
local mark = redis.call('GET', KEYS[2])
if mark and held(mark) then
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
