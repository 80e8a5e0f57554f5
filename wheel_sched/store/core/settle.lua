#!lua flags=allow-oom
-- Ends items of a claim. An id that is no longer in flight under this claim is stale and is not changed.
-- An id that was cancelled while in flight leaves; it does not wait again (n) and is not held (h).
-- ARGV[3] -> claim number   ARGV[4] -> greatest number of dead letters (0 = any)
-- ARGV[5] -> number of plain "done" ids
-- ARGV[6..] -> these ids, then quadruples: id, verb, argument, tail ("" = keep the record):
--   n <due ms, "" = parked>   the id waits again until this due
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
local codes = settle_items(s, ARGV, number, ids, plain, first)
trim_dead_above(s, cap)
local text = table.concat(codes)
record_answer(s, text)
local due_head, lease_head = finish(s)
return {text, s.us, due_head, lease_head}
