-- Shared code of the delay store's scripts. A function library loads it once; under EVALSHA it precedes each script.
--
-- Every script gets the same KEYS, all with one hash tag {ns:shard}:
--   KEYS[1]  meta   HASH    clock, last (ms), epoch, seq, claims, frozen, owner, owned (until, ms),
--                           paused (number of topics), turn (see overdue_of_others), p:<topic>,
--                           n:<state>:<topic> (items of this state now), t:<event>:<topic> (events so far),
--                           fair (number of fair topics; the field exists while `ready` may hold ids)
--   KEYS[2]  due    ZSET    id -> due (ms)
--   KEYS[3]  leased ZSET    id -> lease deadline (ms)
--   KEYS[4]  body   HASH    id -> record, of waiting, held and in-flight ids
--   KEYS[5]  claim  HASH    id -> [!]<claim number>:<due>:<r|->:<topic>; "!" = cancelled while in flight, r = has refs
--   KEYS[6]  held   ZSET    id -> due (ms), 0 = none
--   KEYS[7]  why    HASH    id -> <reason>\n<topic>, of held ids
--   KEYS[8]  dead   ZSET    id -> time of death (ms)
--   KEYS[9]  deadbody HASH  id -> <length of reason>:<reason><record>; zeros before the length are a mark, see bury
--   KEYS[10] mark   STREAM  the marker: one entry {d: due}, written when a new item is due before all others
--   KEYS[11] lapsed HASH    id -> how often its lease ran out
-- and, with the same hash tag: ready (ZSET id -> due: waiting ids of fair topics, which are in no other set; see the
-- room fair_shares), op:<token> (the first answer of a call, for repeats), ref:<ref> (SET of ids) and
-- held:<reason code>:<topic> (ZSET id -> due). The rooms beside the core have further keys with the same hash tag. The
-- `prelude.lua` or the scripts of each room describe them.
-- ARGV[1] -> [<now (ms)>]@<shards>: `now` is present only in a test-clock namespace; `shards` is the number of shards
--            that the caller works with, 0 = any
-- ARGV[2] -> token of the call, "" = not repeatable
--
-- In the answers of scripts, "head of due" is when the next waiting id may be claimed, and "head of leased" is the
-- earliest lease deadline. Both are in ms; -1 = none.
--
-- record = 1:<version>:<length of topic>:<of route>:<of refs>:<topic><route><refs, one per line><body>

local META, DUE, LEASED, BODY, CLAIM, HELD, WHY = 1, 2, 3, 4, 5, 6, 7
local DEAD, DEADBODY, MARK, LAPSED = 8, 9, 10, 11
local PLACES = {due = DUE, leased = LEASED, held = HELD, dead = DEAD}   -- the sorted set of each state

local MAX_BATCH = 500        -- a larger batch gains little and blocks the server more than 1.3 ms
local TOO_MANY = {err = 'WSBATCH at most ' .. MAX_BATCH .. ' items a call'}
local CLAMP_MS = 5000        -- a backward step up to this counts as jitter: the last time is used instead
local REPLY_TTL_MS = 60000   -- how long the first answer of a call is kept for repeats of the call

-- A server packs small sets and hashes, and searches a packed one from end to end. For a batch of 125 this search costs
-- more than the rest of a claim. A set or hash with this long member is never packed. The member is longer than any id
-- (512 bytes), so it never equals an id.
local PAD = '~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~'
PAD = PAD .. PAD .. PAD .. PAD .. PAD .. PAD .. PAD .. PAD

-- A ref that starts with these bytes says how a room handles its item.
local INSTRUCTION = 'wheel:'

local function ms(n) return string.format('%d', n) end

-- Hooks: when a room is loaded, it adds a function to a list. The core calls every function of the list.
local on_given_up = {}       -- (s, id, refs): an item that has refs died or was cancelled
local on_free = {}           -- (s, id, topic): an item was cancelled or deleted, so its id may be used again
local on_restored = {}       -- (s, id, score, reason): a restore or a reshard put back a held item
local on_sweep = {}          -- (s): sweep.lua runs
local on_died = {}           -- (s, id, refs, topic, reason, died (ms)): answers the letter's mark, see bury; nil = none
local on_dead_gone = {}      -- (s, id, refs, topic, reason, mark, lifted): a dead letter leaves the dead letters.
                             -- `lifted`: its time of death (ms) when it lies in another shard now, otherwise nil
local on_storing = {}        -- (s, ARGV, first, i, n, have, dead, seen): a ref of triple i starts with INSTRUCTION.
                             -- Answers {[number of triple i or a later one] = {code, other = id, due}}: code x does not
                             -- store the triple, r stores it instead of the other id
local on_put_back = {}       -- (s, id, topic, refs): a restore or a reshard put back a waiting item that has refs
local on_write = {}          -- (s): the call writes what it has gathered
local on_drop = {}           -- (s): the shard is deleted
local room_keys = {}         -- names of the keys that rooms keep for a shard; they are deleted with the shard
local reshard_keys = {}      -- room keys that are wrong after a change of the number of shards

local function call_all(hooks, ...)
  for i = 1, #hooks do hooks[i](...) end
end

-- Begins a call. Answers the state of the call: time, epoch and everything to write at the end.
-- `mode` READING: the call changes nothing, and works while the namespace is frozen.
-- `mode` LATER: the call ends with `write` or `finish`, which also write the time.
-- `...`: names of more fields of `meta`; their values are in `s.meta` from index 8 up. One command that reads many
-- fields is cheaper than two commands.
local READING, LATER = 'reading', 'later'
local function begin(KEYS, ARGV, mode, ...)
  local m = redis.call('HMGET', KEYS[META], 'clock', 'last', 'epoch', 'paused', 'frozen', 'shards', 'fair', ...)
  local reading = mode == READING
  if not m[1] then return {err = 'WSABSENT the namespace does not exist'} end
  if m[5] and not reading then return {err = 'WSFROZEN the namespace is frozen: ' .. m[5]} end
  local given = ''
  if ARGV[1] ~= '@' .. m[6] then       -- the quick test first: most calls pass it
    local shards
    given, shards = string.match(ARGV[1], '^(%d*)@(%d+)$')
    if not given then return {err = 'WSCLOCK now must be whole milliseconds'} end
    if shards ~= '0' and shards ~= m[6] and not reading then
      return {err = 'WSSHARDS the namespace has ' .. m[6] .. ' shards, this process works with ' .. shards}
    end
  end
  local us
  if m[1] == 'test' then
    if given == '' then return {err = 'WSCLOCK this namespace runs on test time and needs now'} end
    us = tonumber(given) * 1000
  else
    if given ~= '' then return {err = 'WSCLOCK this namespace runs on server time and refuses now'} end
    local t = redis.call('TIME')
    us = tonumber(t[1]) * 1000000 + tonumber(t[2])
  end
  local s = {K = KEYS, epoch = tonumber(m[3]), paused = tonumber(m[4] or '0'), tally = {}, due = {}, held = {},
             prefix = string.sub(KEYS[META], 1, -5), token = ARGV[2], meta = m, sets = {},
             now = math.floor(us / 1000), us = us}
  if m[7] then s.ready = s.prefix .. 'ready' end
  local last = tonumber(m[2] or '0')
  if s.now < last then
    if last - s.now <= CLAMP_MS then
      s.now = last
      s.us = last * 1000
    elseif not reading then
      s.epoch = redis.call('HINCRBY', KEYS[META], 'epoch', 1)
      redis.call('HINCRBY', KEYS[META], 'jumps', 1)
      redis.call('HSET', KEYS[META], 'last_jump', ms(s.now - last), 'last', ms(s.now))
    end
  elseif s.now > last and not reading then
    if mode == LATER then
      s.sets = {'last', ms(s.now)}
    else
      redis.call('HSET', KEYS[META], 'last', ms(s.now))
    end
  end
  return s
end

local function add(s, field, by) s.tally[field] = (s.tally[field] or 0) + by end

-- Counts `by` ids (default 1) that move from one state to another; nil = not in the store.
local function moves(s, topic, from, to, by)
  if from then add(s, 'n:' .. from .. ':' .. topic, -(by or 1)) end
  if to then add(s, 'n:' .. to .. ':' .. topic, by or 1) end
end

local function event(s, name, topic, by) add(s, 't:' .. name .. ':' .. topic, by or 1) end

local function parse(rec)
  local version, tl, kl, rl, at = string.match(rec, '^1:(%d+):(%d+):(%d+):(%d+):()')
  if not version then return nil end
  tl, kl, rl = tonumber(tl), tonumber(kl), tonumber(rl)
  local topic = string.sub(rec, at, at + tl - 1)
  local refs = rl > 0 and string.sub(rec, at + tl + kl, at + tl + kl + rl - 1) or nil
  return topic, refs, version, at + tl + kl + rl
end

-- Answers, for the tail of a record: its topic, the lengths of topic, route and refs, and where the topic starts.
local NO_TAIL = '0:0:0:'
local function head_of(tail)
  local tl, kl, rl, at = string.match(tail, '^(%d+):(%d+):(%d+):()')
  return string.sub(tail, at, at + tl - 1), tonumber(tl), tonumber(kl), tonumber(rl), at
end

-- Answers topic, refs and where the body starts. Most records of a batch start with the same bytes, so the function
-- compares these bytes and parses only when they differ.
local function glance(s, rec)
  local known = s.known
  if known and string.sub(rec, 1, #known) == known then return s.known_topic, nil, #known + 1 end
  local _, head, length = string.find(rec, '^1:%d+:(%d+):0:0:')   -- no route and no refs: read in half the time
  if head then
    local stop = head + length
    s.known, s.known_topic = string.sub(rec, 1, stop), string.sub(rec, head + 1, stop)
    return s.known_topic, nil, stop + 1
  end
  local topic, refs, _, at = parse(rec)
  if topic and not refs then s.known, s.known_topic = string.sub(rec, 1, at - 1), topic end
  return topic, refs, at
end

-- A ref fair:<key> is the fair key of an item. It has no index.
local function refs_of(s, refs, id, command)
  for ref in string.gmatch(refs, '[^\n]+') do
    if string.sub(ref, 1, 5) ~= 'fair:' then redis.call(command, s.prefix .. 'ref:' .. ref, id) end
  end
end

-- Answers the refs, nil when there is none besides the fair key.
local function indexed(refs)
  if refs and string.sub(refs, 1, 5) == 'fair:' and not string.find(refs, '\n', 6, true) then return nil end
  return refs
end

local function unref(s, id, rec)
  local _, refs = parse(rec)
  if refs then refs_of(s, refs, id, 'SREM') end
end

local function reason_code(reason) return string.match(reason, '^[%w_%-]+') or 'other' end

local function put_held(s, id, due, topic, reason)
  local key = s.prefix .. 'held:' .. reason_code(reason) .. ':' .. topic
  if #s.held == 0 then s.whys, s.index = {}, {} end
  table.insert(s.held, due) table.insert(s.held, id)
  table.insert(s.whys, id) table.insert(s.whys, reason .. '\n' .. topic)
  s.index[key] = s.index[key] or {}
  table.insert(s.index[key], due) table.insert(s.index[key], id)
end

local function is_paused(s, topic)
  if s.paused == 0 then return false end
  s.blocked = s.blocked or {}
  if s.blocked[topic] == nil then
    s.blocked[topic] = redis.call('HEXISTS', s.K[META], 'p:' .. topic) == 1
  end
  return s.blocked[topic]
end

-- The functions of the room fair_shares. The core calls them only while `s.ready` is set.
--   waits(s, topic, due)      whether a new id of this topic waits in `ready`
--   add_waiting(s, id, due, topic, refs)  gathers such an id; s.least_ready is the earliest due of all of them
--   write_waiting(s)          writes the ids that `add_waiting` gathered
--   take(s, n, until_ms)      see `take`
--   head(s, head)             head of `due` (-1 = none) -> when the next id may be claimed
--   dropped(s, id, due)       an id that waited in `ready` leaves, while it still has its record
--   ended(s, ids, published)  the claim of these ids has ended; `published`: the set of those that are done
--   renamed(s, id, other)     an id in flight has another name now
local shares = {}

-- Lets an id wait, or holds it when its topic is paused. Answers the name of the new state. `refs`: the refs of a new
-- item, '' = none, nil = unknown. If the refs are unknown, an id of a fair topic waits in `due` until it is overdue.
local function put_waiting(s, id, due, topic, refs)
  if is_paused(s, topic) then
    put_held(s, id, due, topic, 'paused')
    return 'held'
  end
  if refs and s.ready and shares.waits(s, topic, due) then
    shares.add_waiting(s, id, due, topic, refs)
    return 'due'
  end
  local list = s.due
  local k = #list
  list[k + 1], list[k + 2] = due, id
  if not s.least or due < s.least then s.least = due end
  return 'due'
end

local function drop_held(s, id)
  local why = redis.call('HGET', s.K[WHY], id)
  if not why then return nil end
  local reason, topic = string.match(why, '^(.-)\n(.*)$')
  redis.call('ZREM', s.prefix .. 'held:' .. reason_code(reason) .. ':' .. topic, id)
  redis.call('ZREM', s.K[HELD], id)
  redis.call('HDEL', s.K[WHY], id)
  return reason
end

-- Removes the refs of a cancelled item and calls the hooks.
local function cancelled(s, id, rec)
  local _, refs = parse(rec)
  if refs then
    refs_of(s, refs, id, 'SREM')
    call_all(on_given_up, s, id, refs)
  end
end

-- Turns a score into whole ms from 0 up. The store writes only such scores. A score that another program has written
-- must not look like "none" (-1) and must not break a record.
local LAST_MS = 9007199254740991
local function ms_of(score)
  if string.find(score, '^%d+$') then return score end
  return ms(math.min(math.max(math.ceil(tonumber(score) or 0), 0), LAST_MS))
end

local function first_score(key)
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return head[2] and tonumber(ms_of(head[2])) or -1
end

-- Sets a field of `meta`; `write` writes it together with the other fields.
local function set(s, field, value)
  local k = #s.sets
  s.sets[k + 1], s.sets[k + 2] = field, value
end

-- Adds to each counter what the call has counted for it (`s.tally`). A counter that is 0 has no field. A batch of many
-- topics has many counters, and one command for all of them is cheaper than one for each.
local FEW_COUNTERS = 2
local function count_in(s, fields)
  if #fields <= FEW_COUNTERS then
    for _, field in ipairs(fields) do
      if redis.call('HINCRBY', s.K[META], field, s.tally[field]) == 0 then redis.call('HDEL', s.K[META], field) end
    end
    return
  end
  local gone, values = {}, redis.call('HMGET', s.K[META], unpack(fields))
  for i, field in ipairs(fields) do
    local value = tonumber(values[i] or '0') + s.tally[field]
    if value ~= 0 then set(s, field, ms(value)) else gone[#gone + 1] = field end
  end
  if #gone > 0 then redis.call('HDEL', s.K[META], unpack(gone)) end
end

-- Writes everything the call has gathered. Writes the marker when a new item is due before all others. Answers the head
-- of `due`, or nil when nothing was added to `due`.
local function write(s)
  call_all(on_write, s)
  local head, mark
  if #s.due > 0 or s.least_ready then head = first_score(s.K[DUE]) end
  if s.least_ready then
    local first = shares.head(s, head)
    if first < 0 or s.least_ready < first then mark = s.least_ready end
    shares.write_waiting(s)
  end
  if #s.due > 0 then
    redis.call('ZADD', s.K[DUE], unpack(s.due))
    if head < 0 or s.least < head then
      head = s.least
      mark = math.min(mark or head, head)
    end
  end
  if mark then redis.call('XADD', s.K[MARK], 'MAXLEN', 1, '*', 'd', ms(mark)) end
  if #s.held > 0 then
    redis.call('ZADD', s.K[HELD], unpack(s.held))
    redis.call('HSET', s.K[WHY], unpack(s.whys))
    for key, pairs_ in pairs(s.index) do redis.call('ZADD', key, unpack(pairs_)) end
  end
  local counts = s.counts              -- values of some counters at the start of the call, if the call has read them
  local unread = {}
  for field, by in pairs(s.tally) do
    local before = counts and counts[field]
    if by ~= 0 and before and before + by > 0 then
      set(s, field, ms(before + by))
    elseif by ~= 0 then
      unread[#unread + 1] = field
    end
  end
  if #unread > 0 then count_in(s, unread) end
  if #s.sets > 0 then
    redis.call('HSET', s.K[META], unpack(s.sets))
    s.sets = {}                        -- a call may write more than once
  end
  return head
end

-- Answers when the next waiting id may be claimed: the earliest due time, or later when the limits of a fair topic hold
-- it back. -1 = never. `known`: the head of `due`, when the caller knows it.
local function due_head(s, known)
  local head = known or first_score(s.K[DUE])
  if s.ready then return shares.head(s, head) end
  return head
end

-- Answers the due time of a waiting id (text), nil when the id does not wait.
local function due_score(s, id)
  return redis.call('ZSCORE', s.K[DUE], id) or s.ready and redis.call('ZSCORE', s.ready, id) or nil
end

-- Removes an id from the waiting ones. Answers whether it waited.
local function drop_due(s, id)
  if redis.call('ZREM', s.K[DUE], id) == 1 then return true end
  local due = s.ready and redis.call('ZSCORE', s.ready, id)
  if not due then return false end
  redis.call('ZREM', s.ready, id)
  shares.dropped(s, id, due)
  return true
end

-- Calls `write`. Answers the head of `due` (see `due_head`) and the head of `leased` (the earliest lease deadline).
local function finish(s)
  return due_head(s, write(s)), first_score(s.K[LEASED])
end

local function recall(s) return s.token ~= '' and redis.call('GET', s.prefix .. 'op:' .. s.token) end

local function record_answer(s, text)
  if s.token ~= '' then redis.call('SET', s.prefix .. 'op:' .. s.token, text, 'PX', REPLY_TTL_MS) end
end

-- The refusal of a call that came with the epoch `given`.
local function other_epoch(s, given)
  return {err = 'WSEPOCH the epoch is ' .. ms(s.epoch) .. ', the call came with ' .. given}
end

-- Counts how often each name occurs, in no fixed order. So a counter changes once per topic, not once per id.
local function tally_of(list)
  local counts = {}
  for _, name in ipairs(list) do counts[name] = (counts[name] or 0) + 1 end
  return counts
end
