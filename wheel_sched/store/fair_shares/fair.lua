#!lua flags=allow-oom
-- Fair topics of a shard. prelude.lua in this folder describes the Redis keys.
-- ARGV[3] -> verb, ARGV[4..] -> its arguments:
--   configure <topic> <settings, "" = no longer fair> (<key> <cost>)...   answers {now (us), number of fair topics}
--   finish <id>...      these attempts have ended: frees their places        answers {now (us), how many had one}
--   carry (<id> <other>)...  gives the place of each id to the other id; the time for which it is taken starts again,
--                       also when both ids are the same           answers {now (us), how many had one}
--   prepare             looks for overdue ids of fair topics                 answers {now (us), head of due, of leased, 1 = a topic is
--                       fair, 1 = it has found some and has not reached the end}
local verb = ARGV[3]
local s = begin(KEYS, ARGV, LATER)
if s.err then return s end
if #ARGV > 4 + 2 * MAX_BATCH + 1 then return TOO_MANY end
local function names(name) return s.prefix .. 'fair' .. name end
if verb == 'configure' then
  local topic, settings = ARGV[4], ARGV[5]
  local weights = names('weights:' .. topic)
  redis.call('DEL', weights)
  if settings == '' then
    redis.call('HDEL', names('topics'), topic)
  else
    redis.call('HSET', names('topics'), topic, settings)
    for at = 6, #ARGV, 2 do redis.call('HSET', weights, ARGV[at], ARGV[at + 1]) end
  end
  local count = redis.call('HLEN', names('topics'))
  if count > 0 or redis.call('EXISTS', s.prefix .. 'ready', names('places')) > 0 then
    redis.call('HSET', KEYS[META], 'fair', count)
  else
    redis.call('HDEL', KEYS[META], 'fair', 'fair_at', 'fair_turn', 'fair_rest')
  end
  write(s)
  local head = first_score(KEYS[DUE])      -- a dispatcher that sleeps must see what may go now
  if head >= 0 then redis.call('XADD', KEYS[MARK], 'MAXLEN', 1, '*', 'd', ms(math.min(head, s.now))) end
  return {s.us, count}
end
if verb == 'finish' then
  local count = 0
  if s.ready and #ARGV > 3 then
    local ids = {unpack(ARGV, 4)}
    local values = redis.call('HMGET', names('places'), unpack(ids))
    for _, value in ipairs(values) do count = count + (value and 1 or 0) end
    if shares_work.free(s, ids, values) > 0 then
      redis.call('XADD', KEYS[MARK], 'MAXLEN', 1, '*', 'd', ms(s.now))
    end
  end
  write(s)
  return {s.us, count}
end
if verb == 'carry' then
  local count = 0
  for at = 4, s.ready and #ARGV or 0, 2 do
    if shares_work.carry(s, ARGV[at], ARGV[at + 1]) then count = count + 1 end
  end
  write(s)
  return {s.us, count}
end
if verb == 'prepare' then
  local more = false
  if s.ready then
    shares_work.wake(s, 0)
    more = shares_work.prepare(s, s.now)
  end
  local due, leased = finish(s)
  return {s.us, due, leased, s.ready and 1 or 0, more and 1 or 0}
end
return {err = 'WSBATCH there is no verb ' .. verb}
