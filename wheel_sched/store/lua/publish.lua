-- Claims due items and pushes them to streams or lists of the same server in one step: exactly once.
-- Their bodies must be in push form: <S|L>1;<length>:<target><length>:<piece>...
--   S: XADD target field value field value ...      L: LPUSH target piece
-- What cannot be pushed (no push form, unknown stream, target of a wrong type) stays claimed and is reported.
-- ARGV[3] -> n   ARGV[4] -> lease of the refused (ms)   ARGV[5] -> epoch ("" = any)
-- ARGV[6] -> lapses until an item is poison (0 = never)   ARGV[7] -> prefix of the targets
-- ARGV[8] -> "1" = streams that do not exist are created   ARGV[9] -> approximate MAXLEN of the streams (0 = none)
-- Answers {claim number (0 = none refused), now (us), epoch, head of due, head of fly, number of refused,
--          (id, due, record, reason) of each refused, due of each pushed ...}.
local s = begin(KEYS, ARGV)
if s.err then return s end
local n = tonumber(ARGV[3])
if not (n >= 0 and n <= MAX_BATCH) then return {err = 'WSBATCH at most ' .. MAX_BATCH .. ' items a call'} end
local said = recall(s)
if said then
  -- the pushed ones are out, the refused ones come back when their lease ends
  local reply = {0, s.us, s.epoch, first_score(KEYS[DUE]), first_score(KEYS[FLY]), 0}
  for due in string.gmatch(said, '%d+') do reply[#reply + 1] = tonumber(due) end
  return reply
end
if ARGV[5] ~= '' and tonumber(ARGV[5]) < s.epoch then
  return {err = 'WSEPOCH the epoch is ' .. ms(s.epoch) .. ', the call came with ' .. ARGV[5]}
end
recover(s, MAX_BATCH, tonumber(ARGV[6]))
if #s.due > 0 then
  redis.call('ZADD', KEYS[DUE], unpack(s.due))
  s.due, s.least = {}, nil
end
local ids, dues, recs, topics, refs = take(s, n, s.now)
local prefix, create, maxlen = ARGV[7], ARGV[8] == '1', ARGV[9]
local types = {}
local function refusal(kind, target)
  local found = types[target]
  if not found then
    -- pcall: a target this user may not touch, or of another slot, must not stop the script with ids taken out
    local answer = redis.pcall('TYPE', target)
    found = answer.ok or answer.err
    types[target] = found
  end
  if kind == 'S' then
    if found == 'stream' or (found == 'none' and create) then return nil end
    if found == 'none' then return 'unknown topic: there is no stream ' .. target end
    return 'the target ' .. target .. ' is no stream: ' .. found
  end
  if found == 'list' or found == 'none' then return nil end
  return 'the target ' .. target .. ' is no list: ' .. found
end
local function push(kind, target, pieces)
  local answer
  if kind == 'L' then
    answer = redis.pcall('LPUSH', target, unpack(pieces))
  elseif maxlen ~= '0' then
    answer = redis.pcall('XADD', target, 'MAXLEN', '~', maxlen, '*', unpack(pieces))
  else
    answer = redis.pcall('XADD', target, '*', unpack(pieces))
  end
  if type(answer) == 'table' and answer.err then return 'the target ' .. target .. ' refused: ' .. answer.err end
  types[target] = kind == 'S' and 'stream' or 'list'
end
local pushed, gone, refused = {}, {}, {}
for i, id in ipairs(ids) do
  local rec = recs[i]
  local _, refs_text, _, at = parse(rec)
  local kind, target, why = string.match(rec, '^([SL])1;', at), nil, nil
  local pieces = {}
  if kind then
    at = at + 3
    local stop = #rec
    while at <= stop do
      local from, to, length = string.find(rec, '^(%d+):', at)
      if not from or to + length > stop then kind = nil break end
      pieces[#pieces + 1] = string.sub(rec, to + 1, to + length)
      at = to + length + 1
    end
    if kind and (#pieces > 3000 or #pieces < 2 or (kind == 'S' and #pieces % 2 == 0)) then kind = nil end
  end
  if kind then
    target = prefix .. table.remove(pieces, 1)
    why = refusal(kind, target) or push(kind, target, pieces)
  else
    why = 'quarantine: the body is not in push form'
  end
  if why then
    local k = #refused
    refused[k + 1], refused[k + 2], refused[k + 3], refused[k + 4] = i, id, rec, why
  else
    pushed[#pushed + 1] = ms(dues[i])
    gone[#gone + 1] = id
    if refs_text then refs_of(s, refs_text, id, 'SREM') end
    moves(s, topics[i], 'due', nil)
    event(s, 'completed', topics[i])
  end
end
local number = 0
local reply = {0, s.us, s.epoch, 0, 0, #refused / 4}
if #refused > 0 then
  number = redis.call('HINCRBY', KEYS[META], 'claims', 1)
  for k = 1, #refused, 4 do
    local i, id = refused[k], refused[k + 1]
    redis.call('ZADD', KEYS[FLY], s.now + tonumber(ARGV[4]), id)
    redis.call('HSET', KEYS[CLAIM], id, number .. ':' .. ms(dues[i]) .. ':' .. refs[i] .. ':' .. topics[i])
    moves(s, topics[i], 'due', 'fly')
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = id, dues[i], refused[k + 2], refused[k + 3]
  end
end
if #gone > 0 then
  redis.call('HDEL', KEYS[BODY], unpack(gone))
  if redis.call('EXISTS', KEYS[LAPSED]) == 1 then redis.call('HDEL', KEYS[LAPSED], unpack(gone)) end
end
for _, due in ipairs(pushed) do reply[#reply + 1] = tonumber(due) end
if #ids > 0 then record_answer(s, table.concat(pushed, ' ')) end
reply[1] = number
reply[4], reply[5] = finish(s)
return reply
