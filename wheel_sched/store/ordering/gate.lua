#!lua flags=allow-oom
-- Ordering keys: a failed key is closed, and its later messages stand in line until its head succeeds or is given up.
--   gates         HASH  gate -> <c|r>:<since (ms)>:<length of label>:<label><stem of the head>, of closed keys alone
--                       c: closed by a failure; r: the head was released from the line; stem "?" = not known
--   key:<gate>    ZSET  id -> when it was parked (ms, rising by one at least): the line
--   done          ZSET  stem -> until (ms): heads that have succeeded, so that a late second copy is known
--   gaveup        ZSET  the same of those that are dead or cancelled: their place is not to be read a second time
--   owners        HASH  scope -> <epoch>:<until (ms)>:<holder>: who reads a topic for a group; a gate starts with its scope
-- An id is <stem>.<attempt>. Parked ids are held, reason "ordered: key <gate>". What is given up in other scripts gives
-- way there (give_way in the prelude).
-- ARGV[3] -> verb, ARGV[4..] -> its arguments:
--   own <scope> <holder> <lease (ms)>      takes or renews; answers {epoch (0 = another holds it), ms it is held for}
--   leave <scope> <holder>                 gives it up; answers {epoch, 0}
--   close <scope> <holder> <epoch> (<gate> <stem> <placed> <label>)...
--   park <scope> <holder> <epoch> <cap> (<gate> <stem> <placed> <id> <tail>)...
--     placed: 1 when the stem is made of the place the message was read at, so that no other message has it
--   look (<gate> <stem>)...
--   pass <s succeeded|d given up|* whoever it is> (<gate> <stem>)...
--   list <scope, "" = all> <cursor> <count>  answers {cursor, gate, value, parked, ...}
--   count <topic>...                       answers {closed keys, parked of each topic, ...}
-- close, park, look and pass answer a code per row: t the scope is another's, nothing was done; and
--   close: o closed with this head, w another head is there, d it has ended before: it closes nothing
--   park:  a the key is open, o this is the head that closed it, d it was parked or has ended before, h parked, w full
--   look:  o this is the head, d it has succeeded before, a neither: it is outside the order
--   pass:  o the next one is due, or the key is open; a it was not the head
local verb = ARGV[3]
local s = begin(KEYS, ARGV, (verb == 'list' or verb == 'count') and READING or nil)
if s.err then return s end
local gates, owners = s.base .. 'gates', s.base .. 'owners'
if #ARGV > 8 + 5 * MAX_BATCH then return {err = 'WSBATCH at most ' .. MAX_BATCH .. ' items a call'} end

local function owner_of(scope)
  local epoch, till, holder = string.match(redis.call('HGET', owners, scope) or '', '^(%d+):(%d+):(.*)$')
  return tonumber(epoch or '0'), tonumber(till or '0'), holder
end
local function stale(codes, rows)
  local epoch, _, holder = owner_of(ARGV[4])
  if holder == ARGV[5] and epoch == tonumber(ARGV[6]) then return false end
  for i = 1, rows do codes[i] = 't' end
  return true
end
local function is_in(ended, stem)
  local till = redis.call('ZSCORE', s.base .. ended, stem)
  return till and tonumber(till) > s.now
end
-- Whoever gives a message the id of one that was given up means it to be handled again: only its own place is that one's.
local function has_ended(stem, placed)
  return is_in('done', stem) or (placed == '1' and is_in('gaveup', stem))
end

if verb == 'own' then
  local epoch, till, holder = owner_of(ARGV[4])
  if till > s.now and holder ~= ARGV[5] then return {0, till - s.now} end
  if till <= s.now or holder ~= ARGV[5] then epoch = epoch + 1 end
  redis.call('HSET', owners, ARGV[4], epoch .. ':' .. ms(s.now + tonumber(ARGV[6])) .. ':' .. ARGV[5])
  return {epoch, tonumber(ARGV[6])}
end
if verb == 'leave' then
  local epoch, _, holder = owner_of(ARGV[4])
  if holder == ARGV[5] then redis.call('HSET', owners, ARGV[4], epoch .. ':0:') end
  return {epoch, 0}
end
if verb == 'list' then
  local step = redis.call('HSCAN', gates, ARGV[5], 'MATCH', ARGV[4] .. '*', 'COUNT', tonumber(ARGV[6]))
  local reply = {step[1]}
  for i = 1, #step[2], 2 do
    local n = #reply
    reply[n + 1], reply[n + 2] = step[2][i], step[2][i + 1]
    reply[n + 3] = redis.call('ZCARD', s.base .. 'key:' .. step[2][i])
  end
  return reply
end
if verb == 'count' then
  local reply = {redis.call('HLEN', gates)}
  for i = 4, #ARGV do reply[i - 2] = redis.call('ZCARD', s.base .. 'held:ordered:' .. ARGV[i]) end
  return reply
end

local codes = {}
if verb == 'close' then
  if stale(codes, (#ARGV - 6) / 4) then return table.concat(codes) end
  for at = 7, #ARGV, 4 do
    local gate, stem, placed, label = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local value = redis.call('HGET', gates, gate)
    local head = value and select(4, gate_parts(value))
    if head ~= stem and has_ended(stem, placed) then   -- read again, it has failed; nothing of it is to be waited for
      codes[#codes + 1] = 'd'
    else
      if not value or head == '?' then
        redis.call('HSET', gates, gate, 'c:' .. ms(s.now) .. ':' .. #label .. ':' .. label .. stem)
        head = stem
      end
      codes[#codes + 1] = head == stem and 'o' or 'w'
    end
  end
elseif verb == 'look' then
  for at = 4, #ARGV, 2 do
    local value = redis.call('HGET', gates, ARGV[at])
    local head = value and select(4, gate_parts(value))
    if head == ARGV[at + 1] or head == '?' then
      codes[#codes + 1] = 'o'
    else
      codes[#codes + 1] = is_in('done', ARGV[at + 1]) and 'd' or 'a'
    end
  end
elseif verb == 'pass' then
  local how = ARGV[4]
  for at = 5, #ARGV, 2 do
    local value = redis.call('HGET', gates, ARGV[at])
    local label, head
    if value then label, head = select(3, gate_parts(value)) end
    if value and (head == ARGV[at + 1] or head == '?' or how == '*') then
      if how ~= '*' then has_come_to_its_end(s, how == 's' and 'done' or 'gaveup', ARGV[at + 1]) end
      next_of_key(s, ARGV[at], label)
      codes[#codes + 1] = 'o'
    else
      codes[#codes + 1] = 'a'
    end
  end
elseif verb == 'park' then
  if stale(codes, (#ARGV - 7) / 5) then return table.concat(codes) end
  local cap, seq = tonumber(ARGV[7]), nil
  for at = 8, #ARGV, 5 do
    local gate, stem, placed, id, tail = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
    local value = redis.call('HGET', gates, gate)
    local kind, head
    if value then
      local parts = {gate_parts(value)}
      kind, head = parts[1], parts[4]
    end
    local line = s.base .. 'key:' .. gate
    local code
    if head == stem then   -- before all else: a head that is taken for a copy would never open its key
      code = kind == 'c' and 'o' or 'd'
    elseif has_ended(stem, placed) then
      code = 'd'
    elseif redis.call('HEXISTS', KEYS[BODY], id) == 1 or redis.call('HEXISTS', KEYS[DEADBODY], id) == 1 then
      code = 'd'
    elseif not value then
      code = 'a'
    elseif redis.call('ZCARD', line) >= cap then
      code = 'w'
    else
      code = 'h'
      seq = seq or redis.call('HINCRBY', KEYS[META], 'seq', 1)
      local rec = '1:' .. seq .. ':' .. tail
      local topic, refs = parse(rec)
      local last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')
      local score = math.max(s.now, last[2] and tonumber(last[2]) + 1 or 0)
      redis.call('HSET', KEYS[BODY], id, rec)
      redis.call('ZADD', line, score, id)
      put_held(s, id, score, topic, 'ordered: key ' .. gate)
      if refs then refs_of(s, refs, id, 'SADD') end
      moves(s, topic, nil, 'held')
      event(s, 'accepted', topic)
    end
    codes[#codes + 1] = code
  end
else
  return {err = 'WSBATCH there is no verb ' .. verb}
end
finish(s)
return table.concat(codes)
