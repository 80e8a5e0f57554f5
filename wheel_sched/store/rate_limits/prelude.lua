-- Rate limits: the keys besides those of each topic and destination (see flow.lua).
room_keys[#room_keys + 1] = 'flows'
