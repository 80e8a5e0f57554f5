#!lua flags=no-writes
-- One page of a state, found as in scan.lua and packed into a few long strings: several strings for each row would cost
-- the server and the reader too much. Writes nothing.
-- ARGV[3..9] -> as in scan.lua
-- Answers {now (us), "1" = there may be more, ids, lengths of ids, scores, records, lengths of records, reasons}.
-- Ids are joined without a separator, and so are records. Lengths and scores are text, separated by blanks. Length -1
-- means: no record. The last three are empty when the call asks for no records. When it asks for records, a page ends
-- soon after BYTES bytes of them. Reasons are a list. Only ids in flight and held ids have a reason.
local BYTES, PART = 1048576, 125
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local limit = math.min(tonumber(ARGV[8]), MAX_BATCH)
local found = page_of(s, ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], limit)
local written = {}                     -- lengths as text; most lengths of a page are equal
local ids, scores, lengths = {}, {}, {}
local n = #found / 2
for i = 1, n do
  local id = found[2 * i - 1]
  local length = #id
  if not written[length] then written[length] = ms(length) end
  ids[i], scores[i], lengths[i] = id, found[2 * i], written[length]
end
local more = n == limit and n > 0
local records, sizes, reasons = {}, {}, {}
if ARGV[9] == '1' then
  local hash, bytes, done = KEYS[ARGV[3] == 'dead' and DEADBODY or BODY], 0, 0
  while done < n and bytes < BYTES do
    local part = redis.call('HMGET', hash, unpack(ids, done + 1, math.min(done + PART, n)))
    for i = 1, #part do
      local length = -1
      if part[i] then length = #part[i] else part[i] = '' end
      if not written[length] then written[length] = ms(length) end
      sizes[done + i] = written[length]
    end
    done = done + #part
    local text = table.concat(part)
    records[#records + 1] = text
    bytes = bytes + #text
  end
  if done < n then n, more = done, true end
  local why = n > 0 and ({leased = KEYS[CLAIM], held = KEYS[WHY]})[ARGV[3]]
  if why then reasons = redis.call('HMGET', why, unpack(ids, 1, n)) end
end
local function packed(list, between) return table.concat(list, between, 1, n) end
return {s.us, more and '1' or '', packed(ids, ''), packed(lengths, ' '), packed(scores, ' '),
        table.concat(records), table.concat(sizes, ' '), reasons}
