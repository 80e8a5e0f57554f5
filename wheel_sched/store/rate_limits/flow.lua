#!lua flags=allow-oom
-- Flow control of released items: a rate per topic (a cap, a budget, or both) and a circuit per destination.
--   flow:<topic>              HASH  tat (us, of the rate), slot (us, the last one given away), interval (us),
--                                   first attempts of two windows (w, f0, f1), counters granted, rate, budget, spread
--   circuit:<topic>\n<dest>   HASH  state c|o|h, until (ms), probe (ms), within (ms), counters refused, opens, probes,
--                                   results of two windows (w, ok0, bad0, ok1, bad1) and of a probe (pok, pbad)
--   flows                     ZSET  t<topic> | c<topic>\n<dest> -> last used (ms): the names that `look` reports
-- ARGV[3] -> verb, ARGV[4..] -> its arguments:
--   admit <topic> <interval (us), 0 = no cap> <burst, 0 = as many as one second allows>
--         <budget: share (ppm), 0 = none> <budget: least per 1000 s>
--         <circuit: failures (ppm), 0 = none> <of> <within (ms)> <open (ms)> (<dest> <wanted>)...
--     answers per destination: how many may go now, due of the first refused item (us), time between the due times
--     of the next ones (us), why: r rate, b budget, o circuit open, h circuit half open, - none is refused
--   report <topic> (<dest> <first attempts> <succeeded> <failed>)... answers the number of rows
--   spread <topic> <how many due times were moved apart>             answers the total so far
--   look                                                             answers {now (us), name, {field, value, ...}, ...}
local verb = ARGV[3]
local s = begin(KEYS, ARGV, verb == 'look' and READING or nil)
if s.err then return s end
local KEEP_MS, WINDOW_MS = 3600000, 10000
local flows = s.prefix .. 'flows'

local function fields_of(key)
  local all, found = redis.call('HGETALL', key), {}
  for i = 1, #all, 2 do found[all[i]] = tonumber(all[i + 1]) or all[i + 1] end
  return found
end
local function save(key, name, values)
  local flat = {}
  for field, value in pairs(values) do
    flat[#flat + 1] = field
    flat[#flat + 1] = type(value) == 'number' and ms(value) or value
  end
  redis.call('HSET', key, unpack(flat))
  redis.call('PEXPIRE', key, KEEP_MS)
  redis.call('ZADD', flows, s.now, name)
end
-- Counts use two windows. The count of the earlier window loses weight evenly while the current window passes.
local function slide(f, width, fields)
  local w = math.floor(s.now / width)
  local age = w - (f.w or 0)
  if age > 0 then
    for _, name in ipairs(fields) do
      f[name .. '1'] = age == 1 and f[name .. '0'] or 0
      f[name .. '0'] = 0
    end
    f.w = w
  end
end
local function faded(f, width, name)
  return (f[name .. '0'] or 0) + (f[name .. '1'] or 0) * (1 - (s.now % width) / width)
end

if verb == 'look' then
  local reply = {s.us}
  for _, name in ipairs(redis.call('ZREVRANGE', flows, 0, MAX_BATCH - 1)) do
    local key = s.prefix .. (string.sub(name, 1, 1) == 't' and 'flow:' or 'circuit:') .. string.sub(name, 2)
    local all = redis.call('HGETALL', key)
    if #all > 0 then
      reply[#reply + 1] = name
      reply[#reply + 1] = all
    end
  end
  return reply
end

local topic = ARGV[4]
local flow_key = s.prefix .. 'flow:' .. topic
local f = fields_of(flow_key)
slide(f, WINDOW_MS, {'f'})
redis.call('ZREMRANGEBYSCORE', flows, '-inf', s.now - KEEP_MS)

local function circuit_of(dest) return s.prefix .. 'circuit:' .. topic .. '\n' .. dest, 'c' .. topic .. '\n' .. dest end

if verb == 'report' then
  for at = 5, #ARGV, 4 do
    local first, ok, bad = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    f.f0 = (f.f0 or 0) + first
    local key, name = circuit_of(ARGV[at])
    local c = fields_of(key)
    slide(c, c.within or 60000, {'ok', 'bad'})
    c.ok0, c.bad0 = (c.ok0 or 0) + ok, (c.bad0 or 0) + bad
    if c.state == 'h' then c.pok, c.pbad = (c.pok or 0) + ok, (c.pbad or 0) + bad end
    save(key, name, c)
  end
  save(flow_key, 't' .. topic, f)
  return (#ARGV - 4) / 4
end
if verb == 'spread' then
  f.spread = (f.spread or 0) + tonumber(ARGV[5])
  save(flow_key, 't' .. topic, f)
  return f.spread
end
if verb ~= 'admit' then return {err = 'WSBATCH there is no verb ' .. verb} end

local interval, burst, share, least = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local trip, of, within, open_ms = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local why = 'r'
if share > 0 then
  local allowed = least / 1000 + share / 1000000 * faded(f, WINDOW_MS, 'f') / (WINDOW_MS / 1000)
  local spacing = math.ceil(1000000 / allowed)
  if spacing > interval then interval, why = spacing, 'b' end
end
if burst == 0 and interval > 0 then burst = math.max(1, math.floor(1000000 / interval)) end

-- Answers how many items of a destination may pass its circuit (all, one probe, or none) and the due of the others.
local function circuit(dest, wanted)
  if trip == 0 then return wanted end
  local key, name = circuit_of(dest)
  local c = fields_of(key)
  slide(c, c.within or 60000, {'ok', 'bad'})
  c.within, c.w = within, math.floor(s.now / within)   -- counting uses the new width
  local granted, first, mark = wanted, nil, nil
  local function open()
    c.state, c['until'], c.opens = 'o', s.now + open_ms, (c.opens or 0) + 1
    c.ok0, c.ok1, c.bad0, c.bad1, c.pok, c.pbad, c.probe = 0, 0, 0, 0, 0, 0, 0
  end
  if c.state == 'h' then
    if (c.pbad or 0) > 0 then
      open()
    elseif (c.pok or 0) > 0 then
      c.state, c.ok0, c.ok1, c.bad0, c.bad1 = 'c', 0, 0, 0, 0
    end
  elseif c.state == 'o' then
    if s.now >= c['until'] then c.state, c.probe, c.pok, c.pbad = 'h', 0, 0, 0 end
  else
    c.state = 'c'
    local bad = faded(c, within, 'bad')
    local total = bad + faded(c, within, 'ok')
    if total >= of and bad * 1000000 >= trip * total then open() end
  end
  if c.state == 'o' then
    granted, first, mark = 0, c['until'], 'o'
  elseif c.state == 'h' then
    granted, first, mark = 0, s.now + math.ceil(open_ms / 10), 'h'
    if (c.probe or 0) <= s.now and wanted > 0 then
      granted, c.probe, c.probes = 1, s.now + open_ms, (c.probes or 0) + 1
    end
  end
  c.refused = (c.refused or 0) + wanted - granted
  save(key, name, c)
  return granted, first, mark
end

local reply = {}
for at = 13, #ARGV, 2 do
  local wanted = tonumber(ARGV[at + 1])
  local granted, first, mark = circuit(ARGV[at], wanted)
  local n = #reply
  if granted < wanted then
    reply[n + 1], reply[n + 2] = granted, ms(first * 1000)
    reply[n + 3], reply[n + 4] = ms(math.floor(open_ms * 1000 / (wanted - granted))), mark
  else
    local refused = 0
    if interval > 0 then
      local tat = math.max(f.tat or 0, s.us)
      local free = math.max(0, math.floor((s.us + burst * interval - tat) / interval))
      granted = math.min(wanted, free)
      f.tat = tat + granted * interval
      refused = wanted - granted
      if refused > 0 then
        local slot = math.max(f.slot or 0, f.tat - burst * interval)
        first = slot + interval
        f.slot = slot + refused * interval
        local counter = why == 'r' and 'rate' or 'budget'
        f[counter] = (f[counter] or 0) + refused
      end
    end
    reply[n + 1], reply[n + 2] = granted, ms(first or 0)
    reply[n + 3], reply[n + 4] = ms(interval), refused > 0 and why or '-'
  end
  f.granted = (f.granted or 0) + granted
end
f.interval = interval
save(flow_key, 't' .. topic, f)
return reply
