#!lua flags=allow-oom
-- Claims due items and pushes them to streams or lists of the same server in one step: exactly once.
-- Their bodies must be in push form: <S|L>1[<length>,<length>,...]<target><piece><piece>...
--   S: XADD target field value field value ...      L: LPUSH target piece
--   A last field whose name begins with store-note: is not pushed, unless it is the only field.
-- An item that cannot be pushed (no push form, unknown stream, target of a wrong type) is refused: it stays claimed,
-- and the answer reports it.
-- ARGV[3] -> how many items at most   ARGV[4] -> lease of the refused items (ms)   ARGV[5] -> epoch ("" = any)
-- ARGV[6] -> an item dies when its lease has run out this often (0 = never)
-- ARGV[7] -> prefix of the targets
-- ARGV[8] -> "1" = streams that do not exist are created   ARGV[9] -> approximate MAXLEN of the streams (0 = none)
-- Answers {claim number (0 = none refused), now (us), epoch, head of due, head of leased, processor time (us), number of
--          refused, (id, due, record, reason) of each refused item, due times of the pushed items as one text}.
local begun = processor_time()
local s = begin(KEYS, ARGV, LATER)
if s.err then return s end
local n = tonumber(ARGV[3])
if not (n >= 0 and n <= MAX_BATCH) then return TOO_MANY end
local said = recall(s)
if said then
  -- the first call has pushed its items; refused items wait again when their lease ends
  local due_head, lease_head = finish(s)
  return {0, s.us, s.epoch, due_head, lease_head, spent(begun), 0, said}
end
if ARGV[5] ~= '' and tonumber(ARGV[5]) < s.epoch then return other_epoch(s, ARGV[5]) end
recover_first(s, tonumber(ARGV[6]))
local ids, dues, recs, topics, refs, starts = take(s, n, s.now)
local prefix, create, maxlen = ARGV[7], ARGV[8] == '1', ARGV[9]
local types, own = {}, {}
for _, key in ipairs(KEYS) do own[key] = true end
local function refusal(kind, target)
  -- names of targets come from outside: a key of a store's own data is not allowed as a target
  if string.find(target, '^{[^{}]*:%d+}:', #prefix + 1) or own[target] then
    return 'unknown topic: ' .. target .. ' is a key of a delay store'
  end
  if string.find(target, 'wheel-sched:', #prefix + 1, true) then
    return 'unknown topic: ' .. target .. ' is a name of our own keys (wheel-sched:)'
  end
  local found = types[target]
  if not found then
    -- pcall: a target of another slot, or without permission for this user, must not stop the script after it has
    -- taken ids out of `due`
    local answer = redis.pcall('TYPE', target)
    found = answer.ok or tostring(answer.err)
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
  if type(answer) == 'table' and answer.err then
    return 'the target ' .. target .. ' refused: ' .. tostring(answer.err)
  end
  types[target] = kind == 'S' and 'stream' or 'list'
end
-- The lengths that a text like "5,3,12" lists, and their sum; false when a body with this list is not in push form.
-- Most bodies of a call have one of a few lists, so each list is read once.
local lists = {}
local function lengths_of(kind, text)
  local known = lists[kind .. text]
  if known == nil then
    known = false
    local read, lengths = pcall(cjson.decode, '[' .. text .. ']')
    if string.find(text, '^[%d,]*%d$') and read and #lengths <= 3000 and #lengths >= 2
       and not (kind == 'S' and #lengths % 2 == 0) then
      known = lengths
      known.sum = 0
      for _, length in ipairs(lengths) do known.sum = known.sum + length end
    end
    lists[kind .. text] = known
  end
  return known
end
-- The target of a body in push form, and its other pieces; nil when the body is not in push form. `at`: where the body
-- starts.
local function pieces_of(rec, at, kind)
  local sub, stop = string.sub, string.find(rec, ']', at + 3, true)
  local lengths = stop and lengths_of(kind, sub(rec, at + 3, stop - 1))
  if not lengths or stop + lengths.sum ~= #rec then return nil end
  local from = stop + 1 + lengths[1]
  local target, pieces, last = sub(rec, stop + 1, from - 1), {}, #lengths - 1
  for i = 1, last do
    local length = lengths[i + 1]
    pieces[i] = sub(rec, from, from + length - 1)
    from = from + length
  end
  if kind == 'S' and last >= 4 and sub(pieces[last - 1], 1, 11) == 'store-note:' then
    pieces[last], pieces[last - 1] = nil, nil
  end
  return target, pieces
end
local allowed = {S = {}, L = {}}      -- targets to which this call has pushed
local pushed, gone, refused, done = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local rec, at = recs[i], starts[i]
  local kind, target, pieces, why = string.sub(rec, at, at + 2), nil, nil, nil
  kind = (kind == 'S1[' and 'S') or (kind == 'L1[' and 'L')
  if kind then target, pieces = pieces_of(rec, at, kind) end
  if pieces then
    target = prefix .. target
    why = not allowed[kind][target] and refusal(kind, target) or push(kind, target, pieces)
    if not why then allowed[kind][target] = true end
  else
    why = 'quarantine: the body is not in push form'
  end
  if why then
    local k = #refused
    refused[k + 1], refused[k + 2], refused[k + 3], refused[k + 4] = i, id, rec, why
  else
    local k = #pushed + 1
    pushed[k], gone[k], done[k] = dues[i], id, topics[i]
    if refs[i] then refs_of(s, refs[i], id, 'SREM') end
  end
end
for topic, count in pairs(tally_of(done)) do
  moves(s, topic, 'due', nil, count)
  event(s, 'completed', topic, count)
end
local number = 0
local reply = {0, s.us, s.epoch, 0, 0, 0, #refused / 4}
if #refused > 0 then
  number = redis.call('HINCRBY', KEYS[META], 'claims', 1)
  for k = 1, #refused, 4 do
    local i, id = refused[k], refused[k + 1]
    redis.call('ZADD', KEYS[LEASED], s.now + tonumber(ARGV[4]), id)
    redis.call('HSET', KEYS[CLAIM], id, number .. ':' .. dues[i] .. ':' .. (refs[i] and 'r' or '-') .. ':' .. topics[i])
    moves(s, topics[i], 'due', 'leased')
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = id, dues[i], refused[k + 2], refused[k + 3]
  end
end
if #gone > 0 then
  redis.call('HDEL', KEYS[BODY], unpack(gone))
  if s.ready then
    local published = {}
    for _, id in ipairs(gone) do published[id] = true end
    shares.ended(s, gone, published)
  end
  if redis.call('EXISTS', KEYS[LAPSED]) == 1 then redis.call('HDEL', KEYS[LAPSED], unpack(gone)) end
end
reply[#reply + 1] = table.concat(pushed, ' ')
if #ids > 0 then record_answer(s, table.concat(pushed, ' ')) end
reply[1] = number
reply[4], reply[5] = finish(s)
reply[6] = spent(begun)
return reply
