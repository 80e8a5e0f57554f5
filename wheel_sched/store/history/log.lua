#!lua flags=allow-oom
-- Appends entries to the shard's log, a bounded stream of what happened; for people and reports, never for decisions.
-- ARGV[3] -> how many entries are kept, about   ARGV[4..] -> entries
-- Answers how many were appended: what cannot be (a key of another type, no memory) is left out, for a log must not
-- hold up what it tells of.
local s = begin(KEYS, ARGV)
if s.err then return s end
local added = 0
for at = 4, #ARGV do
  local answer = redis.pcall('XADD', s.prefix .. 'log', 'MAXLEN', '~', ARGV[3], '*', 'e', ARGV[at])
  if type(answer) == 'string' then added = added + 1 end
end
return added
