#!lua flags=no-writes
-- One page of the members whose lease has not ended, in order of its end. Writes nothing.
-- ARGV[3] -> id of the last member of the page before ("" = from the start)   ARGV[4] -> the end of its lease (ms)
-- Answers {id, end of the lease (ms), value of `announced`, ...}.
local s = begin(KEYS, ARGV, READING)
if s.err then return s end
local found = page_behind(s.prefix .. 'members', ms(s.now + 1), ms(LAST_MS), ARGV[3], ARGV[4], MAX_BATCH)
local ids, reply = {}, {}
for at = 1, #found, 2 do ids[#ids + 1] = found[at] end
local values = #ids > 0 and redis.call('HMGET', s.prefix .. 'announced', unpack(ids)) or {}
for i, id in ipairs(ids) do
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = id, tonumber(ms_of(found[2 * i])), values[i] or ''
end
return reply
