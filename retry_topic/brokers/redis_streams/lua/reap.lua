-- Remove members that hold nothing and were silent for the given time. A member that holds entries is never removed,
-- because its entries would be lost with it.
-- KEYS[1] -> the topic's stream
-- ARGV[1] -> group
-- ARGV[2] -> silent for at least (ms)
-- ARGV[3] -> only this member; '' for every member
-- Returns the number of removed members.
local removed = 0
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
    local member = {}
    for i = 1, #flat, 2 do
        member[flat[i]] = flat[i + 1]
    end
    if member.pending == 0 and member.idle >= tonumber(ARGV[2]) and (ARGV[3] == '' or ARGV[3] == member.name) then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], member.name)
        removed = removed + 1
    end
end
return removed
