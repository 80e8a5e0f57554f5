"""Ordered consumption: the messages of one key are handled one after the other, also across failures.

A message that fails closes its key and becomes the key's *head*. Later messages of the key are parked in the delay
store until the head has succeeded or is given up. Then they come back one by one on the group's redelivery topic.

| module | what it does |
|---|---|
| `reader` | the thread that reads one ordered topic and survives all errors; base of the two readers |
| `leased_topic` | a reader for brokers whose members compete: one consumer of the group owns the topic under a lease |
| `assigned_partitions` | a reader for brokers that assign partitions: each partition is read by its member |
| `assignment` | one assignment of a partition to a reader: the lease, the deliveries in flight, their settler |
| `key_queues` | one queue per key; decides which message is handled, parked or settled |
| `key_heads` | the same for messages that come back on the redelivery topic |
| `settler_thread` | the thread in which both decide |
"""
