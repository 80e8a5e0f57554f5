-- Drop the oldest entries beyond a length, but only entries that every group has settled. The floor is the oldest entry
-- that some group holds or has not read yet.
-- KEYS[1] -> the topic's stream
-- ARGV[1] -> how many entries may stay; 0: only the unsettled ones. Above 0 the server drops whole stream nodes.
-- ARGV[2] -> "1": also trim a stream that no group reads; else leave such a stream alone
-- Returns the number of dropped entries.
local function parts(id)
    return string.match(id, '^(%d+)-(%d+)$')
end

-- Ids are pairs of 64-bit numbers. A Lua number cannot hold them exactly, so compare the digits.
local function less(a, b)
    if #a ~= #b then
        return #a < #b
    end
    return a < b
end

local function before(a, b)
    local a_ms, a_seq = parts(a)
    local b_ms, b_seq = parts(b)
    if a_ms ~= b_ms then
        return less(a_ms, b_ms)
    end
    return less(a_seq, b_seq)
end

local function after(id)
    local ms, seq = parts(id)
    if #seq > 15 then -- a Lua number cannot count this far exactly: keep this one entry
        return id
    end
    return ms .. '-' .. string.format('%.0f', tonumber(seq) + 1)
end

local keep = tonumber(ARGV[1])
local excess = redis.call('XLEN', KEYS[1]) - keep
if excess <= 0 then
    return 0
end
local floor
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local group = {}
    for i = 1, #flat, 2 do
        group[flat[i]] = flat[i + 1]
    end
    local unsettled
    if group.pending > 0 then
        unsettled = redis.call('XPENDING', KEYS[1], group.name)[2]
    else
        unsettled = after(group['last-delivered-id'])
    end
    if not floor or before(unsettled, floor) then
        floor = unsettled
    end
end
if not floor then
    return ARGV[2] == '1' and redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', keep) or 0
end
if keep == 0 then
    return redis.call('XTRIM', KEYS[1], 'MINID', floor)
end
return redis.call('XTRIM', KEYS[1], 'MINID', '~', floor, 'LIMIT', excess)
