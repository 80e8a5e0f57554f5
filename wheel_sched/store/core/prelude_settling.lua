-- Ending items of a claim, for the scripts of several rooms. The twin is `settle_items` in settle.py.

-- Ends the items `ids`: the first `plain` of them are done, for the others ARGV has quadruples (see settle.lua) from
-- ARGV[first] on. An id whose record has another version than its verb names stays claimed; with `back` it waits again
-- and is due now. Answers a code per id.
local function settle_items(s, ARGV, number, ids, plain, first, back)
  local codes = {}
  if #ids == 0 then return codes end
  local claims = redis.call('HMGET', s.K[CLAIM], unpack(ids))
  local landed, gone, settled, done, published = {}, {}, {}, {}, {}
  local seq
  -- The values in `claim` of one batch mostly differ only in the due, which has 13 digits today. So the script compares
  -- each value with the last parsed one around the due, and parses it only when they differ.
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
      rec = holder == number and redis.call('HGET', s.K[BODY], id) or ''
    end
    if holder ~= number or settled[id] then  -- the same id twice in one call settles once
      codes[i] = 't'
    elseif wanted and cut ~= '!' and string.match(rec, '^1:(%d+):') ~= wanted then
      codes[i] = 'v'
      if back then
        settled[id] = true
        landed[#landed + 1] = id
        moves(s, topic, 'leased', nil)
        moves(s, topic, nil, put_waiting(s, id, s.now, topic))
      end
    else
      settled[id] = true
      landed[#landed + 1] = id
      if not rec and (refs == 'r' or verb ~= 'o') then rec = redis.call('HGET', s.K[BODY], id) or '' end
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
          seq = seq or redis.call('HINCRBY', s.K[META], 'seq', 1)
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
          if tail ~= '' then redis.call('HSET', s.K[BODY], id, rec) end
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
    redis.call('ZREM', s.K[LEASED], unpack(landed))
    redis.call('HDEL', s.K[CLAIM], unpack(landed))
    if redis.call('EXISTS', s.K[LAPSED]) == 1 then redis.call('HDEL', s.K[LAPSED], unpack(landed)) end
  end
  if #gone > 0 then redis.call('HDEL', s.K[BODY], unpack(gone)) end
  return codes
end
