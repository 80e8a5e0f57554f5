"""The intake: decides about each failed message of a group and moves it from the retry topic into the delay store.

| module | what it does |
|---|---|
| `worker` | the thread that reads the retry topic, and waits while store or broker do not answer |
| `from_queue` | carries out plans for a queue (Redis Streams, memory): first stores, then acknowledges |
| `from_log` | carries out plans for a log (Kafka): stores a log batch together with its position |
| `store_time` | the store's time, which `from_log` needs for each batch and asks for once a second |
| `transport` | the common part of both: answers a plan's questions, logs and reports the results |
| `plan` | decides; a pure function of the records, the store's knowledge, the time and the rules |
| `templates` | the decision cache of `plan`: decides about similar records by a template, which costs less |
| `records` | a record that was read, a record that was decided, the report about it, and the rules for all three |
| `origins` | the topics to which due messages may return |

The table follows the way of a failed message. `plan`, `templates` and `records` call no store, broker or clock.
"""
