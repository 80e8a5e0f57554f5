-- Death groups: how many dead letters have the same topic and the same error. Each death, and each letter that leaves,
-- changes the counts in the same step.
--   deathgroups        HASH  <length of topic>:<topic><group> -> <letters now>:<deaths ever>:<first death (ms)>:
--                            <last death (ms)>:<hour>:<deaths in each of 24 hours, with commas>:<id that died last>;
--                            the last of the 24 hours is `hour`, counted from 1970
--   deathgroups_empty  ZSET  the same key -> last death (ms), of groups without letters
-- The mark of a letter (see bury) says where it is counted: OWN in its group, OTHER in the group "(other)" because
-- there were MAX_GROUPS groups. A letter without a mark is not counted.
local MAX_GROUPS, EMPTY_FOR_MS, HOUR_MS, HOURS = 5000, 30 * 86400000, 3600000, 24
local NO_DEATHS = '0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0'
local OWN, OTHER, OTHER_KEY = '0', '00', '0:(other)'
room_keys[#room_keys + 1] = 'deathgroups'
room_keys[#room_keys + 1] = 'deathgroups_empty'

-- The key of a letter's group: the fingerprint of its first ref fp:<fingerprint>, or else the part of the reason before
-- the first colon, 64 characters at most.
local function group_key(refs, topic, reason)
  local start = #topic .. ':' .. topic
  local fingerprint = refs and string.match('\n' .. refs, '\nfp:([^\n]+)')
  if fingerprint then return start .. fingerprint end
  local code = string.match(reason, '^[^:]*')
  local stop = 1
  for _ = 1, #code > 64 and 64 or 0 do
    local behind_one = string.match(code, '^[%z\1-\127\194-\244][\128-\191]*()', stop)
    if not behind_one then break end
    stop = behind_one
  end
  return start .. (#code > 64 and string.sub(code, 1, stop - 1) or code)
end

-- The deaths in the hours of a row as a list. `more` deaths were counted in the last hour since the row was read.
local function hours_of(row)
  if not row.list then
    row.list = {}
    for number in string.gmatch(row.hours, '%d+') do row.list[#row.list + 1] = tonumber(number) end
    for at = #row.list + 1, HOURS do row.list[at] = 0 end
  end
  row.list[HOURS] = math.max(0, row.list[HOURS] + row.more)
  row.more = 0
  return row.list
end

local function group_value(row)
  local before, number = string.match(row.hours, '^([%d,]*,)(%d+)$')
  local hours
  if before and not row.list then      -- most deaths are in the last hour: the others stay text
    hours = before .. ms(math.max(0, number + row.more))
  else
    hours = table.concat(hours_of(row), ',')
  end
  return string.format('%d:%d:%d:%d:%d:%s:', row.count, row.ever, row.first, row.last, row.hour, hours) .. row.last_id
end

-- The row of a group, which the call changes and `write_groups` writes; nil when there is no such group.
local function group_row(s, key)
  s.groups = s.groups or {}
  if s.groups[key] then return s.groups[key] end
  local count, ever, first, last, hour, hours, id =
    string.match(redis.call('HGET', s.prefix .. 'deathgroups', key) or '',
                 '^(%d+):(%d+):(%d+):(%d+):(%d+):([%d,]*):(.*)$')
  if not count then return nil end
  local row = {count = tonumber(count), ever = tonumber(ever), first = tonumber(first), last = tonumber(last),
               hour = tonumber(hour), hours = hours, more = 0, last_id = id, empty = count == '0'}
  s.groups[key] = row
  return row
end

-- Adds `by` deaths at the time `died`. A death in a later hour moves the 24 hours of the row, and the oldest hours are
-- dropped. A death before these hours is not added.
local function count_hour(row, died, by)
  local hour = math.floor(died / HOUR_MS)
  local later = hour - row.hour
  if later == 0 then
    row.more = row.more + by
    return
  end
  local list = hours_of(row)
  if later > 0 then
    for at = 1, HOURS do list[at] = list[at + later] or 0 end
    row.hour, later = hour, 0
  end
  local at = HOURS + later
  if at >= 1 then list[at] = math.max(0, list[at] + by) end
end

local function write_groups(s)
  for key, row in pairs(s.groups or {}) do
    if row.ever < 1 then
      redis.call('HDEL', s.prefix .. 'deathgroups', key)
      redis.call('ZREM', s.prefix .. 'deathgroups_empty', key)
    elseif row.changed then
      redis.call('HSET', s.prefix .. 'deathgroups', key, group_value(row))
      if row.count == 0 then
        redis.call('ZADD', s.prefix .. 'deathgroups_empty', ms(row.last), key)
      elseif row.empty then
        redis.call('ZREM', s.prefix .. 'deathgroups_empty', key)
      end
    end
  end
  s.groups = nil
end
on_write[#on_write + 1] = write_groups

-- Makes room for a new group: forgets the empty group whose last death is the oldest. Answers whether there is room.
local function has_room(s)
  if redis.call('HLEN', s.prefix .. 'deathgroups') < MAX_GROUPS then return true end
  local oldest = redis.call('ZPOPMIN', s.prefix .. 'deathgroups_empty')[1]
  if oldest then redis.call('HDEL', s.prefix .. 'deathgroups', oldest) end
  return oldest
end

-- Counts a letter that died. Answers its mark.
local function count_death(s, id, refs, topic, reason, died)
  died = math.max(0, math.min(died, s.now))
  local key, mark = group_key(refs, topic, reason), OWN
  local row = group_row(s, key)
  if not row then
    write_groups(s)                    -- so that the server knows all groups and which of them are empty
    if not has_room(s) then
      key, mark = OTHER_KEY, OTHER
      row = group_row(s, key)
    end
  end
  if not row then
    row = {count = 0, ever = 0, first = died, last = died, hour = math.floor(died / HOUR_MS), last_id = id,
           hours = NO_DEATHS, more = 0, empty = true}
    s.groups = s.groups or {}
    s.groups[key] = row
  end
  row.count, row.ever, row.first, row.changed = row.count + 1, row.ever + 1, math.min(row.first, died), true
  if died >= row.last then row.last, row.last_id = died, id end
  count_hour(row, died, 1)
  return mark
end
on_died[#on_died + 1] = count_death

on_dead_gone[#on_dead_gone + 1] = function(s, _, refs, topic, reason, mark, lifted)
  if mark == '' then return end
  local row = group_row(s, mark == OTHER and OTHER_KEY or group_key(refs, topic, reason))
  if not row or row.count < 1 then return end
  row.count, row.changed = row.count - 1, true
  if lifted then                       -- the other shard has counted the death as well
    row.ever = math.max(row.count, row.ever - 1)
    count_hour(row, math.max(0, math.min(lifted, s.now)), -1)
  end
end

-- Forgets groups that have been empty for long, MAX_BATCH at most.
on_sweep[#on_sweep + 1] = function(s)
  write_groups(s)
  local old = redis.call('ZRANGEBYSCORE', s.prefix .. 'deathgroups_empty', '-inf', s.now - EMPTY_FOR_MS, 'LIMIT', 0,
                         MAX_BATCH)
  if #old > 0 then
    redis.call('HDEL', s.prefix .. 'deathgroups', unpack(old))
    redis.call('ZREM', s.prefix .. 'deathgroups_empty', unpack(old))
  end
end
