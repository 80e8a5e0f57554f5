-- Log intake: how far it has read the logs of sources.
--   in   HASH  source -> next position
-- The position of a source lies in the shard of the source. After a reshard this may be another shard. So a reshard
-- removes the positions, and readers continue from the offsets that their group has committed.
room_keys[#room_keys + 1] = 'in'
reshard_keys[#reshard_keys + 1] = 'in'
