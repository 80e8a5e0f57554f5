#!lua flags=allow-oom
-- Removes a document.
-- ARGV[3] -> collection   ARGV[4] -> id   ARGV[5] -> the version that it must have ("" = any)
-- Answers 1; 0 when there is no such document or it has another version, and then nothing was changed.
local s = begin(KEYS, ARGV)
if s.err then return s end
local said = recall(s)
if said then return tonumber(said) end
local version = document_of(s, redis.call('HGET', s.prefix .. 'docs:' .. ARGV[3], ARGV[4]))
local removes = version and (ARGV[5] == '' or ARGV[5] == version)
if removes then remove_documents(s, ARGV[3], {ARGV[4]}) end
record_answer(s, removes and '1' or '0')
return removes and 1 or 0
