-- Create an empty stream when the key is absent. A key of another type answers WRONGTYPE.
-- KEYS[1] -> the topic's stream
-- Returns 1 when the stream was created, else 0.
if redis.call('TYPE', KEYS[1]).ok == 'stream' then
    return 0
end
redis.call('XGROUP', 'CREATE', KEYS[1], 'wheel-sched:create', '$', 'MKSTREAM')
redis.call('XGROUP', 'DESTROY', KEYS[1], 'wheel-sched:create')
return 1
