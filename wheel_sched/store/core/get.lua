#!lua flags=no-writes
-- Reads items of any state. Writes nothing. It asks for many ids at once, because each call of the server makes garbage,
-- which is collected while all clients wait.
-- ARGV[3..] -> ids
-- Answers {now (us), then per id: state ("" = absent), score (ms), record, reason}. The record of a dead id is as in
-- `deadbody`, which begins with the reason.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local ids, alive, gone = {}, {}, {}
for i = 3, #ARGV do ids[i - 2] = ARGV[i] end
if #ids > MAX_BATCH then return TOO_MANY end
if #ids == 0 then return {s.us} end
local states, scores, reasons = {}, {}, {}
-- Gives the ids that the set `key` has their state and score. Answers the other ids.
local function look(state, key, wanted)
  local rest = {}
  if #wanted == 0 then return rest end
  for i, score in ipairs(redis.call('ZMSCORE', key, unpack(wanted))) do
    if score then
      states[wanted[i]], scores[wanted[i]] = state, tonumber(score)
    else
      rest[#rest + 1] = wanted[i]
    end
  end
  return rest
end
local function look_up(hash, wanted) return #wanted > 0 and redis.call('HMGET', hash, unpack(wanted)) or {} end

local recs = look_up(KEYS[BODY], ids)
for i, id in ipairs(ids) do
  local list = recs[i] and alive or gone
  list[#list + 1] = id
end
alive = look('due', KEYS[DUE], alive)
if s.ready then alive = look('due', s.ready, alive) end
local held = look('leased', KEYS[LEASED], alive)
if #held < #alive then
  for i, claim in ipairs(look_up(KEYS[CLAIM], alive)) do reasons[alive[i]] = claim or nil end
end
for i, why in ipairs(look_up(KEYS[WHY], held)) do
  states[held[i]], reasons[held[i]] = 'held', string.match(why or '\n', '^(.-)\n')
end
look('held', KEYS[HELD], held)
local letters = {}
for i, value in ipairs(look_up(KEYS[DEADBODY], gone)) do
  if value then states[gone[i]], letters[gone[i]] = 'dead', value end
end
if next(letters) then look('dead', KEYS[DEAD], gone) end

local reply = {s.us}
for i, id in ipairs(ids) do
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] =
    states[id] or '', scores[id] or 0, recs[i] or letters[id] or '', reasons[id] or ''
end
return reply
