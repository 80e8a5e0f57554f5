#!lua flags=allow-oom
-- Ordering keys: a failure closes a key. Later messages of the key are parked until its head succeeds or is given up.
--   locks         HASH  lock -> <c|r>:<since (ms)>:<length of label>:<label><id base of the head>, only of closed keys
--                       c: closed by a failure; r: the head was parked before; id base "?" = unknown head
--   key:<lock>    ZSET  id -> when it was parked (ms, at least one above the id before it): the parked messages of a
--                       key, in order
--   done          ZSET  id base -> until (ms): heads that have succeeded, to recognise a late second copy
--   given_up      ZSET  id base -> until (ms): heads that are dead or cancelled
--   owners        HASH  scope -> <epoch>:<until (ms)>:<holder>: the consumer that reads a topic for a group
-- A lock is <scope>.<digest of the key>. An id is <id base>.<attempt>.
-- A parked id is held, with the reason "ordered: key <lock>".
-- When another script gives up a head, give_way in this folder's prelude.lua makes the next parked id the head.
-- ARGV[3] -> verb, ARGV[4..] -> its arguments:
--   own <scope> <holder> <lease (ms)>        acquires or extends; answers {epoch (0 = refused), for how long (ms),
--                                            1 = the holder before has released it}
--   leave <scope> <holder>                   releases; answers {epoch, 0, 0}
--   close <scope> <holder> <epoch> (<lock> <base> <position_derived> <label>)...
--   park <scope> <holder> <epoch> <cap> (<lock> <base> <position_derived> <id> <tail>)...
--     position_derived: 1 when the id base comes from the position of the message; then no other message has it
--   look (<lock> <base>)...
--   pass <s succeeded|d given up|* any head> (<lock> <base>)...
--   list <scope, "" = all> <cursor> <count>  answers {cursor, lock, value, parked, ...}
--   count <topic>...                         answers {closed keys, parked of each topic, ...}
-- close, park, look and pass answer a code per row. Code t: another holder owns the scope, nothing was changed.
-- Other codes:
--   close: o closed with this head, w the key has another head, d the message has ended before: nothing was closed
--   park:  a the key is open, o this message is the head, d it was parked or has ended before, h parked, w full
--   look:  o this message is the head, d it has succeeded before, a neither: the store does not know it
--   pass:  o the next message is due, or the key is open now; a this message was not the head
local verb = ARGV[3]
local s = begin(KEYS, ARGV, (verb == 'list' or verb == 'count') and READING or nil)
if s.err then return s end
local locks, owners = s.prefix .. 'locks', s.prefix .. 'owners'
if #ARGV > 8 + 5 * MAX_BATCH then return TOO_MANY end

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
local function is_in(ended, base)
  local till = redis.call('ZSCORE', s.prefix .. ended, base)
  return till and tonumber(till) > s.now
end
-- A caller may reuse the id of a message that was given up: then the new message must be handled. Only an id base that
-- comes from a position is certainly the same message.
local function has_ended(base, position_derived)
  return is_in('done', base) or (position_derived == '1' and is_in('given_up', base))
end

if verb == 'own' then
  local epoch, till, holder = owner_of(ARGV[4])
  if till > s.now and holder ~= ARGV[5] then return {0, till - s.now, 0} end
  if holder ~= ARGV[5] then epoch = epoch + 1 end   -- a holder whose lease has lapsed still owns it if nobody else does
  redis.call('HSET', owners, ARGV[4], epoch .. ':' .. ms(s.now + tonumber(ARGV[6])) .. ':' .. ARGV[5])
  return {epoch, tonumber(ARGV[6]), holder == '' and 1 or 0}
end
if verb == 'leave' then
  local epoch, _, holder = owner_of(ARGV[4])
  if holder == ARGV[5] then redis.call('HSET', owners, ARGV[4], epoch .. ':0:') end
  return {epoch, 0, 0}
end
if verb == 'list' then
  local step = redis.call('HSCAN', locks, ARGV[5], 'MATCH', ARGV[4] .. '*', 'COUNT', tonumber(ARGV[6]))
  local reply = {step[1]}
  for i = 1, #step[2], 2 do
    local n = #reply
    reply[n + 1], reply[n + 2] = step[2][i], step[2][i + 1]
    reply[n + 3] = redis.call('ZCARD', s.prefix .. 'key:' .. step[2][i])
  end
  return reply
end
if verb == 'count' then
  local reply = {redis.call('HLEN', locks)}
  for i = 4, #ARGV do reply[i - 2] = redis.call('ZCARD', s.prefix .. 'held:ordered:' .. ARGV[i]) end
  return reply
end

local codes = {}
if verb == 'close' then
  if stale(codes, (#ARGV - 6) / 4) then return table.concat(codes) end
  for at = 7, #ARGV, 4 do
    local lock, base, position_derived, label = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local value = redis.call('HGET', locks, lock)
    local head = value and select(4, lock_parts(value))
    if head ~= base and has_ended(base, position_derived) then   -- a second copy of a message that has ended
      codes[#codes + 1] = 'd'
    else
      if not value or head == '?' then
        redis.call('HSET', locks, lock, 'c:' .. ms(s.now) .. ':' .. #label .. ':' .. label .. base)
        head = base
      end
      codes[#codes + 1] = head == base and 'o' or 'w'
    end
  end
elseif verb == 'look' then
  for at = 4, #ARGV, 2 do
    local value = redis.call('HGET', locks, ARGV[at])
    local head = value and select(4, lock_parts(value))
    if head == ARGV[at + 1] or head == '?' then
      codes[#codes + 1] = 'o'
    else
      codes[#codes + 1] = is_in('done', ARGV[at + 1]) and 'd' or 'a'
    end
  end
elseif verb == 'pass' then
  local how = ARGV[4]
  for at = 5, #ARGV, 2 do
    local value = redis.call('HGET', locks, ARGV[at])
    local label, head
    if value then label, head = select(3, lock_parts(value)) end
    if value and (head == ARGV[at + 1] or head == '?' or how == '*') then
      if how ~= '*' then remember_end(s, how == 's' and 'done' or 'given_up', ARGV[at + 1]) end
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
    local lock, base, position_derived, id, tail = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
    local value = redis.call('HGET', locks, lock)
    local kind, head
    if value then
      local parts = {lock_parts(value)}
      kind, head = parts[1], parts[4]
    end
    local queue = s.prefix .. 'key:' .. lock
    local code
    if head == base then   -- this test comes first: a head that counts as a copy would never open its key
      code = kind == 'c' and 'o' or 'd'
    elseif has_ended(base, position_derived) then
      code = 'd'
    elseif redis.call('HEXISTS', KEYS[BODY], id) == 1 or redis.call('HEXISTS', KEYS[DEADBODY], id) == 1 then
      code = 'd'
    elseif not value then
      code = 'a'
    elseif redis.call('ZCARD', queue) >= cap then
      code = 'w'
    else
      code = 'h'
      seq = seq or redis.call('HINCRBY', KEYS[META], 'seq', 1)
      local rec = '1:' .. seq .. ':' .. tail
      local topic, refs = parse(rec)
      local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
      local score = math.max(s.now, last[2] and tonumber(last[2]) + 1 or 0)
      redis.call('HSET', KEYS[BODY], id, rec)
      redis.call('ZADD', queue, score, id)
      put_held(s, id, score, topic, 'ordered: key ' .. lock)
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
