-- One step that counts dead letters which are in no group, because an older release has buried them. A repeat counts no
-- letter twice.
-- ARGV[3] -> id of the last letter of the step before ("" = from the start)   ARGV[4] -> its time of death (ms)
-- Answers {id of the last letter of this step ("" = finished), its time of death (text), how many were counted}.
local BYTES, LETTERS = 1048576, 250    -- a step ends when it has read this many bytes or letters
local s = begin(KEYS, ARGV)
if s.err then return s end
local found = page_behind(KEYS[DEAD], '-inf', ms(LAST_MS), ARGV[3], ARGV[4], LETTERS)
local last, last_score, counted, bytes = '', '0', 0, 0
for at = 1, #found, 2 do
  if bytes >= BYTES then break end
  local id = found[at]
  last, last_score = id, found[at + 1]
  local value = redis.call('HGET', KEYS[DEADBODY], id)
  if value then
    bytes = bytes + #value
    local rec, reason, mark = dead_parts(value)
    if mark == '' and string.find(value, '^%d+:') then
      local topic, refs = parse(rec)
      mark = count_death(s, id, refs, topic or '', reason, tonumber(ms_of(last_score)))
      redis.call('HSET', KEYS[DEADBODY], id, mark .. value)
      counted = counted + 1
    end
  end
end
write(s)
return {last, ms_of(last_score), counted}
