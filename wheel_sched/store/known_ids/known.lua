#!lua flags=no-writes
-- Whether ids are known for their topics. An id is known when a caller gave and stored it (see schedule_known.lua), or
-- when its item waits, is held or in flight. Writes nothing.
-- ARGV[3..] -> pairs: id, topic
-- Answers {1 or 0, ...}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local reply = {}
for at = 3, #ARGV, 2 do
  local id, topic = ARGV[at], ARGV[at + 1]
  local rec = redis.call('HGET', KEYS[BODY], id)
  reply[#reply + 1] = (rec and parse(rec) == topic or is_known(s, id, topic)) and 1 or 0
end
return reply
