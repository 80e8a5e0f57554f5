#!lua flags=allow-oom
-- Ends open claims by the claim number that their broker has recorded: the broker has published the claims up to this
-- number, and none above it.
-- ARGV[3] -> epoch: refused when the shard has another
-- ARGV[4] -> the number, "" = unknown: all items are held, in doubt
-- ARGV[5] -> number of a claim that stays open ("" = none)
-- ARGV[6] -> an item dies when its lease has run out this often (0 = never)
-- Answers {completed, released, held, 1 = there are more, now (us), head of due, head of leased}.
local s = begin(KEYS, ARGV, LATER, 'claims')
if s.err then return s end
if tonumber(ARGV[3]) ~= s.epoch then return other_epoch(s, ARGV[3]) end
local committed, spared, cap = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local claims = redis.call('HGETALL', KEYS[CLAIM])
local gone, completed, released, held, more = {}, 0, 0, 0, 0
for i = 1, #claims, 2 do
  local id = claims[i]
  local cut, number, due, refs, topic = string.match(claims[i + 1], '^(!?)(%d+):(%d+):([r-]):(.*)$')
  if number and number ~= spared then
    if #gone == MAX_BATCH then
      more = 1
      break
    end
    gone[#gone + 1] = id
    local out = committed and tonumber(number) <= committed
    if out or cut == '!' then
      if refs == 'r' then
        local leave = out and unref or cancelled
        leave(s, id, redis.call('HGET', KEYS[BODY], id) or '')
      end
      drop_record(s, id)
      if s.ready then shares.ended(s, {id}, {[id] = out}) end
      if not out then call_all(on_free, s, id, topic) end
      moves(s, topic, 'leased', nil)
      event(s, out and 'completed' or 'cancelled', topic)
      completed = completed + 1
    elseif not committed then
      if s.ready then shares.ended(s, {id}, {[id] = true}) end
      put_held(s, id, tonumber(due), topic, 'in-doubt: it is unknown whether claim ' .. number .. ' was published')
      moves(s, topic, 'leased', 'held')
      held = held + 1
    else
      lapse(s, id, due, topic, cap, 'its dispatcher died while it was claimed')
      released = released + 1
    end
  end
end
if #gone > 0 then
  redis.call('ZREM', KEYS[LEASED], unpack(gone))
  redis.call('HDEL', KEYS[CLAIM], unpack(gone))
end
if committed and committed > tonumber(s.meta[8] or '0') then set(s, 'claims', ms(committed)) end
local due_head, lease_head = finish(s)
return {completed, released, held, more, s.us, due_head, lease_head}
