-- Claims due items under a lease; expired leases are recovered first.
-- ARGV[3] -> n   ARGV[4] -> lease (ms)   ARGV[5] -> until (ms, "" = now)   ARGV[6] -> epoch ("" = any)
-- ARGV[7] -> lapses until an item is poison (0 = never)
-- Answers {claim number (0 = nothing), now (us), epoch, head of due, head of fly, id, due, record, ...}.
local s = begin(KEYS, ARGV)
if s.err then return s end
local n, lease = tonumber(ARGV[3]), tonumber(ARGV[4])
if not (n >= 0 and n <= MAX_BATCH) then return {err = 'WSBATCH at most ' .. MAX_BATCH .. ' items a call'} end
local said = recall(s)
if said then
  -- a repeat after a lost reply: the same batch, as far as it is still under this claim
  local number = string.match(said, '^(%d+)')
  local reply = {tonumber(number), s.us, s.epoch, first_score(KEYS[DUE]), first_score(KEYS[FLY])}
  local at = #number + 1
  while true do                       -- by length, since an id may look like anything
    local from, to, length = string.find(said, '^\n(%d+):', at)
    if not from then break end
    at = to + length + 1
    local id = string.sub(said, to + 1, at - 1)
    local due = string.match(redis.call('HGET', KEYS[CLAIM], id) or '', '^!?' .. number .. ':(%d+):')
    local rec = due and redis.call('HGET', KEYS[BODY], id)
    if rec then
      reply[#reply + 1] = id
      reply[#reply + 1] = tonumber(due)
      reply[#reply + 1] = rec
    end
  end
  return reply
end
if ARGV[6] ~= '' and tonumber(ARGV[6]) < s.epoch then
  return {err = 'WSEPOCH the epoch is ' .. ms(s.epoch) .. ', the call came with ' .. ARGV[6]}
end
recover(s, MAX_BATCH, tonumber(ARGV[7]))
if #s.due > 0 then
  redis.call('ZADD', KEYS[DUE], unpack(s.due))
  s.due, s.least = {}, nil
end
local until_ms = ARGV[5] ~= '' and math.min(tonumber(ARGV[5]), s.now) or s.now
local ids, dues, recs, topics, refs = take(s, n, until_ms)
local number = 0
local reply = {0, s.us, s.epoch, 0, 0}
if #ids > 0 then
  number = redis.call('HINCRBY', KEYS[META], 'claims', 1)
  local fly, claims, said_ids = {}, {}, {tostring(number)}
  for i, id in ipairs(ids) do
    fly[2 * i - 1], fly[2 * i] = s.now + lease, id
    claims[2 * i - 1], claims[2 * i] = id, number .. ':' .. ms(dues[i]) .. ':' .. refs[i] .. ':' .. topics[i]
    said_ids[i + 1] = #id .. ':' .. id
    moves(s, topics[i], 'due', 'fly')
    local at = 3 + 3 * i
    reply[at], reply[at + 1], reply[at + 2] = id, dues[i], recs[i]
  end
  redis.call('ZADD', KEYS[FLY], unpack(fly))
  redis.call('HSET', KEYS[CLAIM], unpack(claims))
  record_answer(s, table.concat(said_ids, '\n'))
end
reply[1] = number
reply[4], reply[5] = finish(s)
return reply
