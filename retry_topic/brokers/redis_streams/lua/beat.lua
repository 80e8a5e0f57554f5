-- Renew the entries that are still assigned to the consumer. Entries that another consumer has taken over, or that are
-- settled, are not changed. An entry that was not renewed for too long stays as it is: any consumer may take it over,
-- and a late call of its former consumer must not prevent that. The delivery counts do not change.
-- KEYS[1] -> the topic's stream
-- ARGV[1] -> group
-- ARGV[2] -> consumer
-- ARGV[3] -> after this many ms without a renewal an entry waits for any consumer
-- ARGV[4..] -> entry ids
-- Returns the ids that the consumer still holds.
local own, idle_ms = {}, tonumber(ARGV[3])
for i = 4, #ARGV do
    local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1]
    if held and held[3] < idle_ms then
        redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', 0, 'RETRYCOUNT', held[4], 'JUSTID')
        own[#own + 1] = ARGV[i]
    end
end
return own
