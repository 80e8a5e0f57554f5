#!lua flags=allow-oom
-- Repairs damaged ids. The script checks each id again first. It does not change a sound id. It removes a record only
-- when the id has an equal one.
-- ARGV[3..] -> ids
-- Answers a code per id: o repaired, w sound or unknown, v its records in `body` and `deadbody` differ (a person
-- must decide). The state of an id is the set that has it: leased, due, held or dead.
--   a record without a state         the id is held, reason "quarantine"; with a record in `deadbody`, it is
--                                    dead again, from now
--   a state without a record         the id is removed from the set
--   more than one state              the first of in flight, waiting, held is kept; the id is removed from the others
--   equal records in both hashes     the record in `deadbody` is removed
-- The script corrects counters only when it knows the topic. A counter that was wrong before may stay wrong.
local s = begin(KEYS, ARGV)
if s.err then return s end
if #ARGV - 2 > MAX_BATCH then return TOO_MANY end
local codes = {}
local NAMES = {[LEASED] = 'leased', [DUE] = 'due', [HELD] = 'held'}

local function leave(id, place, topic)
  if place == HELD then
    local why = redis.call('HGET', KEYS[WHY], id)
    topic = topic or (why and string.match(why, '^.-\n(.*)$'))
    if not drop_held(s, id) then redis.call('ZREM', KEYS[HELD], id) end
  else
    redis.call('ZREM', KEYS[place], id)
    if place == DUE and s.ready then redis.call('ZREM', s.ready, id) end
  end
  if topic then moves(s, topic, NAMES[place], nil) end
end

local function mend_living(id, rec)
  local code, first = 'w', nil
  local claim = redis.call('HGET', KEYS[CLAIM], id)
  local topic = rec and (parse(rec) or '') or (claim and string.match(claim, '^!?%d+:%d+:[r-]:(.*)$'))
  for _, place in ipairs({LEASED, DUE, HELD}) do
    if redis.call('ZSCORE', KEYS[place], id) or place == DUE and due_score(s, id) then
      if rec and not first then
        first = place
      else
        leave(id, place, topic)
        code = 'o'
      end
    end
  end
  if rec and not first then
    put_held(s, id, 0, topic, 'quarantine: it had a record and no state')
    moves(s, topic, nil, 'held')
    code = 'o'
  end
  if claim and first ~= LEASED then
    redis.call('HDEL', KEYS[CLAIM], id)
    code = 'o'
  end
  return code
end

local function mend_dead(id, rec, dead_value)
  local buried = redis.call('ZSCORE', KEYS[DEAD], id)
  if not dead_value then return buried and redis.call('ZREM', KEYS[DEAD], id) == 1 and 'o' or 'w' end
  local dead_rec = dead_parts(dead_value)
  if rec and rec ~= dead_rec then return 'v' end
  if rec then
    unearth(s, id, dead_value)
    if buried then moves(s, parse(rec) or '', 'dead', nil) end
    redis.call('ZREM', KEYS[DEAD], id)
    redis.call('HDEL', KEYS[DEADBODY], id)
    return 'o'
  end
  if buried then return 'w' end
  redis.call('ZADD', KEYS[DEAD], s.now, id)
  return 'o'
end

for i = 3, #ARGV do
  local id = ARGV[i]
  local rec, dead_value = redis.call('HGET', KEYS[BODY], id), redis.call('HGET', KEYS[DEADBODY], id)
  local living, dead = mend_living(id, rec), mend_dead(id, rec, dead_value)
  codes[#codes + 1] = dead == 'v' and 'v' or ((living == 'o' or dead == 'o') and 'o' or 'w')
end
write(s)
return table.concat(codes)
