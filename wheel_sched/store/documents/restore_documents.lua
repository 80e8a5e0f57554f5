-- Puts documents of a collection back, each with the time of its put and its expiry. An id that exists is not changed,
-- and a document that has expired is left out. Each gets a new version, in the order given.
-- ARGV[3] -> collection   ARGV[4..] -> quadruples: id, time of the put (ms), expiry (ms, 0 = none), value
-- Answers how many were put.
local s = begin(KEYS, ARGV)
if s.err then return s end
if (#ARGV - 3) / 4 > MAX_BATCH then return TOO_MANY end
local collection, put = ARGV[3], 0
for at = 4, #ARGV, 4 do
  local id, ends = ARGV[at], ARGV[at + 2]
  local there = document_of(s, redis.call('HGET', s.prefix .. 'docs:' .. collection, id))
  if not there and (ends == '0' or tonumber(ends) > s.now) then
    store_document(s, collection, id, ARGV[at + 1], ends, ARGV[at + 3])
    put = put + 1
  end
end
return put
