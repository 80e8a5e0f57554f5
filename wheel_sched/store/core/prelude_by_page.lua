-- Reading sorted sets by page, for lists, searches and cleaning. The twins are methods of `SortedSet`.

local function behind(a, b)            -- compares bytes: Lua's own < depends on the server's locale
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- The rank of the first id that sorts behind `last`. `score` is the score that `last` has or had. When `last` has left,
-- a binary search finds the rank, because a million ids may have the same score.
local function rank_behind(key, last, score)
  local rank = redis.call('ZRANK', key, last)
  if rank and tonumber(redis.call('ZSCORE', key, last)) == tonumber(score) then return rank + 1 end
  local low = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if behind(redis.call('ZRANGE', key, middle, middle)[1], last) then high = middle else low = middle + 1 end
  end
  return low
end

-- Up to `limit` ids with their scores, in order, behind the id `last` ("" = from the start). `last_score` is the score
-- that `last` had. The page is read by rank: an offset would make the server walk over every id of the same score.
local function page_behind(key, least, greatest, last, last_score, limit)
  limit = math.min(limit, MAX_BATCH)
  if limit < 1 then return {} end
  if last == '' then
    return redis.call('ZRANGEBYSCORE', key, least, greatest, 'WITHSCORES', 'LIMIT', 0, limit)
  end
  local from = rank_behind(key, last, last_score)
  local found = redis.call('ZRANGE', key, from, from + limit - 1, 'WITHSCORES')
  local n, most = #found, tonumber(greatest)
  while n > 0 and tonumber(found[n]) > most do
    found[n], found[n - 1] = nil, nil
    n = n - 2
  end
  return found
end

-- As `page_behind`, for a state. The waiting ids lie in two sets while a topic is fair.
local function page_of(s, state, least, greatest, last, last_score, limit)
  local found = page_behind(s.K[PLACES[state]], least, greatest, last, last_score, limit)
  if state ~= 'due' or not s.ready then return found end
  local other = page_behind(s.ready, least, greatest, last, last_score, limit)
  if #other == 0 then return found end
  local merged, i, j = {}, 1, 1
  for at = 1, math.min(#found + #other, 2 * math.min(limit, MAX_BATCH)), 2 do
    local a, b = tonumber(found[i + 1]), tonumber(other[j + 1])
    if not b or a and (a < b or a == b and behind(other[j], found[i])) then
      merged[at], merged[at + 1], i = found[i], found[i + 1], i + 2
    else
      merged[at], merged[at + 1], j = other[j], other[j + 1], j + 2
    end
  end
  return merged
end
