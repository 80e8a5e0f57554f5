#!lua flags=no-writes
-- One page of ids of a state, in order of score. Writes nothing.
-- ARGV[3] -> state: due, leased, held or dead   ARGV[4] -> least score   ARGV[5] -> greatest score
-- ARGV[6] -> last id of the page before ("" = from the start)   ARGV[7] -> score of that id   ARGV[8] -> limit
-- ARGV[9] -> "" = every topic, or =<topic>: then a call looks at LOOKED ids at most, and at few large records
-- Answers {now (us), "1" = there may be more, last id looked at ("" = none), its score (text), id, score (text), ...}.
local LOOKED = 60
local BYTES, PART = 262144, 30         -- a call reads PART records at a time, until it has read BYTES bytes
-- The topic of a record from the hash of `state`; nil when the record cannot be read.
local function topic_of(state, rec)
  local from = 1
  if state == 'dead' then
    local length, at = string.match(rec, '^(%d+):()')
    if not length then return nil end
    from = at + tonumber(length)       -- a record may be large: it is not copied
  end
  local tl, at = string.match(rec, '^1:%d+:(%d+):%d+:%d+:()', from)
  return tl and string.sub(rec, at, at + tonumber(tl) - 1)
end
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local state, limit, wanted = ARGV[3], tonumber(ARGV[8]), nil
if ARGV[9] ~= '' then wanted = string.sub(ARGV[9], 2) end
if wanted and redis.call('HEXISTS', KEYS[META], 'n:' .. state .. ':' .. wanted) == 0 then return {s.us, '', '', '0'} end
local asked = wanted and LOOKED or math.min(limit, MAX_BATCH)
local found = page_of(s, state, ARGV[4], ARGV[5], ARGV[6], ARGV[7], asked)
local n = #found / 2
local more, looked, chosen = n == asked and n > 0, 0, {}
local function choose(i)
  local k = #chosen
  chosen[k + 1], chosen[k + 2] = found[2 * i - 1], found[2 * i]
end
if wanted then
  local hash, bytes = KEYS[state == 'dead' and DEADBODY or BODY], 0
  while looked < n and bytes < BYTES and #chosen < 2 * limit do
    local ids, first = {}, looked
    for i = first + 1, math.min(first + PART, n) do ids[#ids + 1] = found[2 * i - 1] end
    for i, rec in ipairs(redis.call('HMGET', hash, unpack(ids))) do
      looked = first + i
      if rec then
        bytes = bytes + #rec
        if topic_of(state, rec) == wanted then choose(looked) end
      end
      if #chosen == 2 * limit then break end
    end
  end
  more = more or looked < n
else
  looked = n
  for i = 1, n do choose(i) end
end
return {s.us, more and '1' or '', looked > 0 and found[2 * looked - 1] or '', looked > 0 and found[2 * looked] or '0',
        unpack(chosen)}
