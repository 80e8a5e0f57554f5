#!lua flags=no-writes
-- Reads items of any state. Writes nothing.
-- ARGV[3..] -> ids
-- Answers {now (us), then per id: state ("" = absent), score (ms), record, reason}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local reply = {s.us}
local function say(state, score, rec, reason)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = state, tonumber(score or '0'), rec, reason
end
for i = 3, #ARGV do
  local id = ARGV[i]
  local rec = redis.call('HGET', KEYS[BODY], id)
  if rec then
    local due = due_score(s, id)
    local leased = not due and redis.call('ZSCORE', KEYS[LEASED], id)
    if due then
      say('due', due, rec, '')
    elseif leased then
      say('leased', leased, rec, redis.call('HGET', KEYS[CLAIM], id) or '')
    else
      local why = redis.call('HGET', KEYS[WHY], id) or '\n'
      say('held', redis.call('ZSCORE', KEYS[HELD], id), rec, string.match(why, '^(.-)\n'))
    end
  else
    local value = redis.call('HGET', KEYS[DEADBODY], id)
    if value then
      local length, at = string.match(value, '^(%d+):()')
      local stop = at + tonumber(length)
      say('dead', redis.call('ZSCORE', KEYS[DEAD], id), string.sub(value, stop), string.sub(value, at, stop - 1))
    else
      say('', 0, '', '')
    end
  end
end
return reply
