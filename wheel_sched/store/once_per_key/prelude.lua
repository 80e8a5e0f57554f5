-- Once per key: of several items of one topic that are scheduled under one key, only one goes out. The ref of an item
-- says which: `wheel:collapse:<key>` the first (later ones are not stored while one waits), or
-- `wheel:debounce:<max_wait (ms), 0 = no bound>:<key>` the last (each new one replaces the one that waits).
-- An item waits for its key while it is in `due`, or held because its topic is paused. One in flight has left.
--   once        HASH  <topic>\n<key> -> <when the first one was stored (ms)>:<id>
--   once_check  ZSET  <topic>\n<key> -> when to see whether the item has left (ms)
local ONCE_CHECK_MS = 60000
room_keys[#room_keys + 1] = 'once'
room_keys[#room_keys + 1] = 'once_check'

-- Answers what the refs say: "collapse" or "debounce", the greatest wait (0 = no bound), and the key.
local function once_mark(refs)
  for line in string.gmatch(refs or '', '[^\n]+') do
    local key = string.match(line, '^wheel:collapse:(.*)$')
    if key then return 'collapse', 0, key end
    local wait
    wait, key = string.match(line, '^wheel:debounce:(%d+):(.*)$')
    if key then return 'debounce', tonumber(wait), key end
  end
end

local function once_remember(s, name, id, first, check)
  redis.call('HSET', s.prefix .. 'once', name, ms(first) .. ':' .. id)
  redis.call('ZADD', s.prefix .. 'once_check', check, name)
end

local function once_forget(s, name)
  redis.call('HDEL', s.prefix .. 'once', name)
  redis.call('ZREM', s.prefix .. 'once_check', name)
end

-- The item that waits under a name: {id, first, record, state}, or nil.
local function once_waiting(s, name)
  local first, id = string.match(redis.call('HGET', s.prefix .. 'once', name) or '', '^(%d+):(.*)$')
  if not id then return nil end
  local rec = redis.call('HGET', s.K[BODY], id)
  if not rec then return nil end
  local topic, refs = parse(rec)
  local _, _, key = once_mark(refs)
  if not key or topic .. '\n' .. key ~= name then return nil end
  local state = due_score(s, id) and 'due'
  if not state and string.find(redis.call('HGET', s.K[WHY], id) or '', '^paused\n') then state = 'held' end
  return state and {id = id, first = tonumber(first), rec = rec, state = state}
end

local function once_replace(s, there, topic)
  local _, refs = parse(there.rec)
  if there.state == 'due' then drop_due(s, there.id) else drop_held(s, there.id) end
  if refs then refs_of(s, refs, there.id, 'SREM') end
  drop_record(s, there.id)
  moves(s, topic, there.state, nil)
end

-- Looks at up to `limit` keys whose time in `once_check` has come, and forgets those whose items have left.
local function once_clean(s, limit)
  local names = redis.call('ZRANGEBYSCORE', s.prefix .. 'once_check', '-inf', s.now, 'LIMIT', 0, limit)
  for _, name in ipairs(names) do
    local id = string.match(redis.call('HGET', s.prefix .. 'once', name) or '', '^%d+:(.*)$')
    if id and redis.call('HEXISTS', s.K[BODY], id) == 1 then
      redis.call('ZADD', s.prefix .. 'once_check', s.now + ONCE_CHECK_MS, name)
    else
      once_forget(s, name)
    end
  end
end

-- Decides about the items of a call from number `from` on. Answers a verdict for each item that has such a ref and must
-- not be stored just as it is: its code (x not stored, r stored instead of another), the id of the other item, its due.
on_storing[#on_storing + 1] = function(s, ARGV, first, from, n, have, dead, taken)
  local verdicts, found, seen, marked = {}, {}, {}, 0
  for i = from, n do
    local at = first + 3 * i - 3
    local id, due, tail = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    if not (have[i] or dead[i] or taken[id] or seen[id]) then
      seen[id] = true
      local topic, tl, kl, rl, head_at = head_of(tail)
      local refs_at = head_at + tl + kl
      local mode, wait, key = once_mark(rl > 0 and string.sub(tail, refs_at, refs_at + rl - 1) or nil)
      if key then
        local name = topic .. '\n' .. key
        local there = found[name]
        if there == nil then there = once_waiting(s, name) end
        if there and mode == 'collapse' then
          verdicts[i] = {code = 'x', other = there.last or there.id}
          event(s, 'dropped', topic)
        else
          local verdict, begun = {}, there and there.first or s.now
          if there then
            if there.at then                             -- of this call: counted as if it had come in an earlier one
              verdicts[there.at] = {code = 'x', other = id}
              event(s, 'accepted', topic)
            end
            if there.rec then verdict.code, verdict.other = 'r', there.id end
            event(s, 'replaced', topic)
          end
          if due ~= '' and wait > 0 then verdict.due = ms(math.min(tonumber(due), begun + wait)) end
          verdicts[i] = verdict
          found[name] = {id = there and there.id, rec = there and there.rec, state = there and there.state, at = i,
                         last = id, first = begun, topic = topic, check = tonumber(verdict.due or due) or s.now}
          marked = marked + 1
        end
      end
    end
  end
  redis.call('ZCARD', s.prefix .. 'once_check')          -- a wrong type fails here, before anything changes
  for name, entry in pairs(found) do
    if entry.rec then once_replace(s, entry, entry.topic) end
    once_remember(s, name, entry.last, entry.first, math.max(entry.check, s.now) + ONCE_CHECK_MS)
  end
  once_clean(s, 2 * marked + 2)
  return verdicts
end

on_died[#on_died + 1] = function(s, id, refs, topic)
  local _, _, key = once_mark(refs)
  if not key then return nil end
  local name = topic .. '\n' .. key
  if string.match(redis.call('HGET', s.prefix .. 'once', name) or '', '^%d+:(.*)$') == id then once_forget(s, name) end
  return nil
end

-- A restore or a reshard put an item back: it waits under its key again, and the greatest wait starts now.
on_put_back[#on_put_back + 1] = function(s, id, topic, refs)
  local _, _, key = once_mark(refs)
  if key then once_remember(s, topic .. '\n' .. key, id, s.now, s.now + ONCE_CHECK_MS) end
end

on_sweep[#on_sweep + 1] = function(s) once_clean(s, MAX_BATCH) end
