#!lua flags=allow-oom
-- Claims due items under a lease; expired leases are recovered first.
-- ARGV[3] -> how many items at most   ARGV[4] -> lease (ms, "" = without an end)
-- ARGV[5] -> until (ms, "" = now)   ARGV[6] -> epoch ("" = any)
-- ARGV[7] -> an item dies when its lease has run out this often (0 = never)
-- ARGV[8] -> the new claim number is above this one (0 = any), even when this server has lost its last claim numbers
-- Answers {claim number (0 = nothing), now (us), epoch, head of due, head of leased, processor time (us), id, due,
-- record, ...}. When the lease of an id ran out n times, its due is written <due>+<n>.
local begun = processor_time()
local NO_LEASE_END_MS = 253402300799999  -- the year 9999: only the owner of the shard ends such a claim
local s = begin(KEYS, ARGV, LATER, 'claims')
if s.err then return s end
local n, lease = tonumber(ARGV[3]), tonumber(ARGV[4])
if not (n >= 0 and n <= MAX_BATCH) then return TOO_MANY end
local said = recall(s)
if said then
  -- a repeat after a lost reply: answers the ids of the same batch that are still under this claim
  local claims, mine = redis.call('HGETALL', KEYS[CLAIM]), {}
  for i = 1, #claims, 2 do
    local due = string.match(claims[i + 1], '^!?' .. said .. ':(%d+):')
    if due then mine[#mine + 1] = {claims[i], tonumber(due)} end
  end
  table.sort(mine, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1]) end)
  local reply = {tonumber(said), s.us, s.epoch, finish(s)}
  reply[6] = spent(begun)
  for _, pair in ipairs(mine) do
    local rec = redis.call('HGET', KEYS[BODY], pair[1])
    if rec then
      local at, lapses = #reply, redis.call('HGET', KEYS[LAPSED], pair[1])
      reply[at + 1], reply[at + 2], reply[at + 3] = pair[1], ms(pair[2]) .. (lapses and '+' .. lapses or ''), rec
    end
  end
  return reply
end
if ARGV[6] ~= '' and tonumber(ARGV[6]) ~= s.epoch then return other_epoch(s, ARGV[6]) end
recover_first(s, tonumber(ARGV[7]))
local until_ms = ARGV[5] ~= '' and math.min(tonumber(ARGV[5]), s.now) or s.now
local ids, dues, recs, topics, refs = take(s, n, until_ms)
local number = 0
local reply = {0, s.us, s.epoch, 0, 0, 0}
if #ids > 0 then
  number = ms(math.max(tonumber(s.meta[8] or '0'), tonumber(ARGV[8])) + 1)
  set(s, 'claims', number)
  local deadline = ms(lease and s.now + lease or NO_LEASE_END_MS)
  local leased, claims, start, ends = {}, {}, number .. ':', {}
  local lapses = redis.call('EXISTS', KEYS[LAPSED]) == 1 and redis.call('HMGET', KEYS[LAPSED], unpack(ids)) or {}
  for i, id in ipairs(ids) do
    local topic, due = topics[i], dues[i]
    local suffix = refs[i] and ':r:' .. topic or ends[topic]
    if not suffix then
      suffix = ':-:' .. topic
      ends[topic] = suffix
    end
    leased[2 * i - 1], leased[2 * i] = deadline, id
    claims[2 * i - 1], claims[2 * i] = id, start .. due .. suffix
    reply[3 * i + 4], reply[3 * i + 6] = id, recs[i]
    reply[3 * i + 5] = lapses[i] and due .. '+' .. lapses[i] or due
  end
  for topic, count in pairs(tally_of(topics)) do moves(s, topic, 'due', 'leased', count) end
  local fresh = #ids > 8 and redis.call('EXISTS', KEYS[LEASED]) == 0
  if fresh then
    redis.call('ZADD', KEYS[LEASED], 0, PAD)
    redis.call('HSET', KEYS[CLAIM], PAD, PAD)
  end
  redis.call('ZADD', KEYS[LEASED], unpack(leased))
  redis.call('HSET', KEYS[CLAIM], unpack(claims))
  if fresh then
    redis.call('ZREM', KEYS[LEASED], PAD)
    redis.call('HDEL', KEYS[CLAIM], PAD)
  end
  record_answer(s, number)
end
reply[1] = tonumber(number)
reply[4], reply[5] = finish(s)
reply[6] = spent(begun)
return reply
