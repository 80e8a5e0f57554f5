-- Known ids: an id that a caller has chosen stays known for its topic after its item has left, so that a repeat stores
-- nothing. An id whose item was cancelled or deleted may be used again.
--   known:<length of id>:<id>:<topic>   STRING  the time until which the id is known (ms)
local function known_key(s, id, topic) return s.prefix .. 'known:' .. #id .. ':' .. id .. ':' .. topic end

local function is_known(s, id, topic)
  local until_ms = redis.call('GET', known_key(s, id, topic))
  return until_ms and tonumber(until_ms) > s.now
end

on_free[#on_free + 1] = function(s, id, topic) redis.call('DEL', known_key(s, id, topic)) end
