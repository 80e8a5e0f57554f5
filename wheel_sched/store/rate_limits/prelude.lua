-- Rate limits: which keys they keep besides those of each topic and destination (see flow.lua).
room_keys[#room_keys + 1] = 'flows'
