#!lua flags=allow-oom
-- Appends entries to the history of the shard, a bounded stream. It is for people and reports, never for decisions.
-- ARGV[3] -> how many entries are kept, about   ARGV[4..] -> entries
-- Answers how many were appended. When an entry cannot be appended (a key of another type, no memory), the script skips
-- it: history must not stop the work that it describes.
local s = begin(KEYS, ARGV)
if s.err then return s end
local added = 0
for at = 4, #ARGV do
  local answer = redis.pcall('XADD', s.prefix .. 'log', 'MAXLEN', '~', ARGV[3], '*', 'e', ARGV[at])
  if type(answer) == 'string' then added = added + 1 end
end
return added
