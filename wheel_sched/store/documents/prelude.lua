-- Documents: small values in named collections, each with a version. All lie in shard 0.
--   docversions            HASH  collection -> the last version that was given
--   docs:<collection>      HASH  id -> <version>:<time of the put (ms)>:<expiry (ms), 0 = none>:<value>
--   docorder:<collection>  ZSET  id -> version, which is also the order of the puts
--   docends:<collection>   ZSET  id -> expiry (ms), of documents that expire
room_keys[#room_keys + 1] = 'docversions'

-- Answers version, time of the put, expiry and value of what `docs` has for an id; nil when the document has expired.
local function document_of(s, value)
  local version, put, ends, at = string.match(value or '', '^(%d+):(%d+):(%d+):()')
  if not version or (ends ~= '0' and tonumber(ends) <= s.now) then return nil end
  return version, put, ends, string.sub(value, at)
end

-- Stores a document under a new version. `put` and `ends` are text. Answers the version.
local function store_document(s, collection, id, put, ends, value)
  local version = ms(redis.call('HINCRBY', s.prefix .. 'docversions', collection, 1))
  redis.call('HSET', s.prefix .. 'docs:' .. collection, id, version .. ':' .. put .. ':' .. ends .. ':' .. value)
  redis.call('ZADD', s.prefix .. 'docorder:' .. collection, version, id)
  if ends == '0' then
    redis.call('ZREM', s.prefix .. 'docends:' .. collection, id)
  else
    redis.call('ZADD', s.prefix .. 'docends:' .. collection, ends, id)
  end
  return version
end

-- Removes documents, MAX_BATCH at most.
local function remove_documents(s, collection, ids)
  if #ids == 0 then return end
  redis.call('ZREM', s.prefix .. 'docorder:' .. collection, unpack(ids))
  redis.call('ZREM', s.prefix .. 'docends:' .. collection, unpack(ids))
  redis.call('HDEL', s.prefix .. 'docs:' .. collection, unpack(ids))
end

-- Removes documents of a collection that have expired, `limit` at most. Answers how many.
local function forget_documents(s, collection, limit)
  local old = redis.call('ZRANGEBYSCORE', s.prefix .. 'docends:' .. collection, '-inf', s.now, 'LIMIT', 0, limit)
  remove_documents(s, collection, old)
  return #old
end

-- Removes documents that have expired, MAX_BATCH at most in all collections together. When a key has another type,
-- nothing is removed: documents must not stop a sweep.
on_sweep[#on_sweep + 1] = function(s)
  local left = MAX_BATCH
  for _, collection in ipairs(redis.pcall('HKEYS', s.prefix .. 'docversions')) do
    local _, removed = pcall(forget_documents, s, collection, left)
    left = left - (tonumber(removed) or 0)
    if left < 1 then return end
  end
end
