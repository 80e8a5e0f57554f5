-- Renew the consumer's hold on the entries that it still holds. An entry that another consumer has taken, or that is
-- settled, is not changed. The count of deliveries does not change.
-- KEYS[1] -> the topic's stream
-- ARGV[1] -> group
-- ARGV[2] -> consumer
-- ARGV[3..] -> entry ids
-- Answers the ids that the consumer still holds.
local own = {}
for i = 3, #ARGV do
    local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1]
    if held then
        redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', 0, 'RETRYCOUNT', held[4], 'JUSTID')
        own[#own + 1] = ARGV[i]
    end
end
return own
