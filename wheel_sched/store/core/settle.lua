#!lua flags=allow-oom
-- Ends items of a claim. An id that is no longer in flight under this claim is stale and is not changed.
-- An id that was cancelled while in flight leaves; it does not wait again (n) and is not held (h).
-- ARGV[3] -> claim number   ARGV[4] -> cap of the dead (0 = none)   ARGV[5] -> number of plain "done" ids
-- ARGV[6..] -> these ids, then quadruples: id, verb, argument, tail ("" = keep the record):
--   n <due ms, "" = parked>   the same id with its next due (a successor, or a release)
--   h <reason>                held
--   d <reason>                dead
--   o                         done
-- A verb may end with a version (n17): when the record has another version, the id stays claimed and is not changed.
-- Answers {codes, now (us), head of due, head of leased}; a code per id: o settled, t stale, c dropped because it was
-- cancelled, v other version.
local s = begin(KEYS, ARGV, LATER)
if s.err then return s end
local said = recall(s)
if said then return {said, s.us, finish(s)} end
local number, cap, plain = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local ids = {}
for i = 1, plain do ids[i] = ARGV[5 + i] end
local first = 6 + plain
for at = first, #ARGV, 4 do ids[#ids + 1] = ARGV[at] end
if #ids > MAX_BATCH then return TOO_MANY end
local codes = {}
if #ids > 0 then
  local claims = redis.call('HMGET', KEYS[CLAIM], unpack(ids))
  local landed, gone, settled, done, published = {}, {}, {}, {}, {}
  local seq
  -- claims of a batch differ only in the due, which has 13 digits today: most claims are only compared with the last
  -- claim that was parsed
  local mine = #number + 1
  local alike, alike_topic
  for i, id in ipairs(ids) do
    local value = claims[i]
    local cut, holder, refs, topic = '', number, '-', alike_topic
    if not (value and alike and string.sub(value, mine + 14) == alike
            and string.sub(value, 1, mine) == number .. ':') then
      cut, holder, refs, topic = string.match(value or '', '^(!?)(%d+):%d+:([r-]):(.*)$')
      if cut == '' and holder == number and refs == '-' and string.sub(value, mine + 14, mine + 16) == ':-:' then
        alike, alike_topic = string.sub(value, mine + 14), topic
      end
    end
    local at = first + 4 * (i - plain - 1)
    local verb, wanted, rec = i > plain and ARGV[at + 1] or 'o', nil, nil
    if #verb > 1 then
      verb, wanted = string.sub(verb, 1, 1), string.sub(verb, 2)
      rec = holder == number and redis.call('HGET', KEYS[BODY], id) or ''
    end
    if holder ~= number or settled[id] then  -- the same id twice in one call settles once
      codes[i] = 't'
    elseif wanted and cut ~= '!' and string.match(rec, '^1:(%d+):') ~= wanted then
      codes[i] = 'v'
    else
      settled[id] = true
      landed[#landed + 1] = id
      if not rec and (refs == 'r' or verb ~= 'o') then rec = redis.call('HGET', KEYS[BODY], id) or '' end
      codes[i] = 'o'
      if cut == '!' and (verb == 'n' or verb == 'h') then
        verb, codes[i] = 'c', 'c'
      end
      if verb == 'o' or verb == 'c' then
        gone[#gone + 1] = id
        if refs == 'r' and verb == 'o' then unref(s, id, rec) end
        if verb == 'o' then
          done[#done + 1] = topic
          if s.ready then published[id] = true end
        else
          if refs == 'r' then cancelled(s, id, rec) end
          call_all(on_free, s, id, topic)
          moves(s, topic, 'leased', nil)
          event(s, 'cancelled', topic)
        end
      else
        local argument, tail = ARGV[at + 2], ARGV[at + 3]
        if tail ~= '' then
          if refs == 'r' then unref(s, id, rec) end
          seq = seq or redis.call('HINCRBY', KEYS[META], 'seq', 1)
          rec = '1:' .. seq .. ':' .. tail
          moves(s, topic, 'leased', nil)
          local new_refs
          topic, new_refs = parse(rec)
          if new_refs then refs_of(s, new_refs, id, 'SADD') end
        else
          moves(s, topic, 'leased', nil)
        end
        if verb == 'd' then
          gone[#gone + 1] = id
          put_dead(s, id, rec, topic, argument)
          moves(s, topic, nil, 'dead')
        else
          if tail ~= '' then redis.call('HSET', KEYS[BODY], id, rec) end
          if verb == 'h' or argument == '' then
            put_held(s, id, 0, topic, verb == 'h' and argument or 'parked')
            moves(s, topic, nil, 'held')
          else
            moves(s, topic, nil, put_waiting(s, id, tonumber(argument), topic))
          end
        end
      end
    end
  end
  for topic, count in pairs(tally_of(done)) do
    moves(s, topic, 'leased', nil, count)
    event(s, 'completed', topic, count)
  end
  if #landed > 0 then
    if s.ready then shares.ended(s, landed, published) end
    redis.call('ZREM', KEYS[LEASED], unpack(landed))
    redis.call('HDEL', KEYS[CLAIM], unpack(landed))
    if redis.call('EXISTS', KEYS[LAPSED]) == 1 then redis.call('HDEL', KEYS[LAPSED], unpack(landed)) end
  end
  if #gone > 0 then redis.call('HDEL', KEYS[BODY], unpack(gone)) end
end
trim_dead_above(s, cap)
local text = table.concat(codes)
record_answer(s, text)
local due_head, lease_head = finish(s)
return {text, s.us, due_head, lease_head}
