#!lua flags=allow-oom
-- Stores a document, or replaces it.
-- ARGV[3] -> collection   ARGV[4] -> id   ARGV[5] -> the version that it must have ("" = any, 0 = it must not exist)
-- ARGV[6] -> how long it is kept (ms, 0 = for ever)   ARGV[7] -> how many documents remain (0 = all)
-- ARGV[8] -> value
-- Answers the new version; 0 when the document has another version, and then nothing was changed.
local s = begin(KEYS, ARGV)
if s.err then return s end
local said = recall(s)
if said then return tonumber(said) end
local collection, id, ttl, keep = ARGV[3], ARGV[4], tonumber(ARGV[6]), tonumber(ARGV[7])
local docs, order = s.prefix .. 'docs:' .. collection, s.prefix .. 'docorder:' .. collection
if ARGV[5] ~= '' and (document_of(s, redis.call('HGET', docs, id)) or '0') ~= ARGV[5] then
  record_answer(s, '0')
  return 0
end
forget_documents(s, collection, MAX_BATCH)
local version = store_document(s, collection, id, ms(s.now), ms(ttl > 0 and s.now + ttl or 0), ARGV[8])
if keep > 0 then
  local over = math.min(redis.call('ZCARD', order) - keep, MAX_BATCH)
  if over > 0 then remove_documents(s, collection, redis.call('ZRANGE', order, 0, over - 1)) end
end
record_answer(s, version)
return tonumber(version)
