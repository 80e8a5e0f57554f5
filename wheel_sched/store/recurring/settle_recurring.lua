#!lua flags=allow-oom
-- Ends items of a claim as settle.lua does. In the same step it stores new items for some of them: occurrences of items
-- that wait again. It stores them only if their item was settled (code o). It also works on a full server: otherwise one
-- recurring item would keep all items of its claim from being settled.
-- ARGV[3] -> claim number   ARGV[4] -> greatest number of dead letters (0 = any)
-- ARGV[5] -> number of plain "done" ids
-- ARGV[6] -> number of quadruples   ARGV[7..] -> these ids, then the quadruples of settle.lua, then groups:
--   number of the quadruple (from 1), number of new items, then a triple for each: id, due (ms, "" = parked), tail of
--   the record. A new item whose id exists is not stored.
-- When the record of an item has another version than its verb names, the item waits again and is due now.
-- Answers {codes, now (us), head of due, head of leased}; the codes are those of settle.lua.
local plain, quads = tonumber(ARGV[5]), tonumber(ARGV[6])
local first = 7 + plain
local groups = first + 4 * quads
local s = begin_storing(KEYS, ARGV, ARGV[groups + 4])
if s.err then return s end
local said = recall(s)
if said then return {said, s.us, finish(s)} end
local ids, count = {}, 0
for i = 1, plain do ids[i] = ARGV[6 + i] end
for at = first, groups - 1, 4 do ids[#ids + 1] = ARGV[at] end
local at = groups
while at <= #ARGV do
  local n = tonumber(ARGV[at + 1])
  count, at = count + n, at + 2 + 3 * n
end
if #ids > MAX_BATCH or count > MAX_BATCH then return TOO_MANY end
local codes = settle_items(s, ARGV, ARGV[3], ids, plain, first, true)
at = groups
while at <= #ARGV do
  local n = tonumber(ARGV[at + 1])
  if codes[plain + tonumber(ARGV[at])] == 'o' then store_new(s, ARGV, at + 2, n, existing(s, ARGV, at + 2, n)) end
  at = at + 2 + 3 * n
end
trim_dead_above(s, tonumber(ARGV[4]))
local text = table.concat(codes)
record_answer(s, text)
local due_head, lease_head = finish(s)
return {text, s.us, due_head, lease_head}
