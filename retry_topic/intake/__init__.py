"""The intake: what becomes of each failed message of a group, and its way from the retry topic into the delay store.

| module | what it does |
|---|---|
| `worker` | the thread that reads the retry topic, and waits while store or broker are away |
| `from_queue` | carries plans out for a queue (Redis Streams, memory): stores, then acknowledges |
| `from_log` | carries plans out for a log (Kafka): stores a log batch together with its position |
| `transport` | what both share: answers a plan's questions, logs and reports what was done |
| `plan` | decides; a pure function of records, what the store knows, the time and the rules |
| `templates` | the decision cache of `plan`: records with the same headers are decided and written alike |
| `rules` | what decides beside the record (group, policies, secrets); how a record is read and written |
| `records` | the values: a record as it was read, a record as it was decided, and what is reported of it |

A failed message goes through them in this order. Nothing below `transport` calls a store, a broker or a clock.
"""
