-- Publish and settle: for each pair both happen or neither. The script publishes nothing for an entry that the group
-- has already settled. So the caller may repeat the whole script after a lost reply.
-- KEYS[..] -> the streams
-- ARGV[1] -> group
-- ARGV[2] -> 'NOMKSTREAM', or '' when publishing may create the target
-- ARGV[3..] -> for each pair: index of the source in KEYS, entry id, index of the target in KEYS,
--              number of fields and values, then the fields and values
-- Returns for each pair 'done', 'unknown' (no such target) or the error's text.
local answers = {}
local at = 3
while at <= #ARGV do
    local source, id, target, length = KEYS[tonumber(ARGV[at])], ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], ARGV[at + 3]
    local first, last = at + 4, at + 3 + tonumber(length)
    at = last + 1
    local answer = 'done'
    local held = redis.pcall('XPENDING', source, ARGV[1], id, id, 1)
    if held.err then
        answer = held.err
    elseif held[1] then
        local added
        if ARGV[2] == '' then
            added = redis.pcall('XADD', target, '*', unpack(ARGV, first, last))
        else
            added = redis.pcall('XADD', target, 'NOMKSTREAM', '*', unpack(ARGV, first, last))
        end
        if not added then
            answer = 'unknown'
        elseif type(added) == 'table' then
            answer = added.err
        else
            redis.call('XACK', source, ARGV[1], id)
        end
    end
    answers[#answers + 1] = answer
end
return answers
