-- Renew the consumer's hold on entries that are still its own: one that another consumer has taken, or that is
-- settled, stays as it is. The count of deliveries does not move.
-- KEYS[1] -> the topic's stream
-- ARGV[1] -> group
-- ARGV[2] -> consumer
-- ARGV[3..] -> entry ids
-- Answers the ids that are its own.
local own = {}
for i = 3, #ARGV do
    local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1]
    if held then
        redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', 0, 'RETRYCOUNT', held[4], 'JUSTID')
        own[#own + 1] = ARGV[i]
    end
end
return own
