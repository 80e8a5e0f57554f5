"""Ordered consumption: the messages of one key are handled one after the other, also across failures.

A message that fails closes its key and becomes the key's *head*. Later messages of the key are parked in the delay
store until the head has succeeded or is given up. Then they come back one by one on the group's redelivery topic.

| module | what it does |
|---|---|
| `reader` | the thread that reads one ordered topic and continues after all errors; base class of the two readers |
| `leased_topic` | for brokers that give records to any member: one consumer of the group leases the whole topic |
| `assigned_partitions` | for brokers that assign partitions: the member that has a partition reads it |
| `assignment` | one assignment of a partition to a reader: the lease, the deliveries in flight, their settler |
| `key_queues` | one queue per key; decides which message is handled, parked or settled |
| `key_heads` | handles messages that come back on the redelivery topic, one per key at a time |
| `settler_thread` | the thread in which `key_queues` and `key_heads` decide; their base class |
"""
