-- Log intake: how far the logs of sources were taken in.
--   in   HASH  source -> next position. The position of a source lies in the shard of the source: after a reshard it may be
--              another shard, so a reshard removes the positions, and readers go on from what their group has committed.
room_keys[#room_keys + 1] = 'in'
reshard_keys[#reshard_keys + 1] = 'in'
