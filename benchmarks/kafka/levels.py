"""A topic per level of delay, read by consumers that pause and seek: the design of Spring Kafka's retry topics.

A message goes to the topic of the shortest level that is not shorter than its delay. A consumer that reads a record
before its level's time pauses the partition, seeks back to it and resumes when the time has come; what is behind it
waits with it. How late a message is, is counted from the moment it was meant for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.rounds import spread

LEVELS_S = (1, 5, 15, 30, 60)
PATIENCE_S = 180.0


def levels(servers: str, delays_ms: Sequence[int], longest_s: float) -> dict[str, float]:
    """How late messages of these delays are, in ms."""
    run = uuid4().hex[:8]
    chosen_s = [level_s for level_s in LEVELS_S if level_s < longest_s] + [longest_s]
    topics = {level_s: f"levels-{run}-{level_s:g}" for level_s in chosen_s}
    admin: Any = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics.values()]).values():
        future.result()
    late_ms: list[int] = []
    readers = [
        threading.Thread(target=_read, args=(servers, topic, round(level_s * 1000), late_ms), daemon=True)
        for level_s, topic in topics.items()
    ]
    producer: Any = Producer({"bootstrap.servers": servers, "linger.ms": 1})
    for delay_ms in delays_ms:
        level_s = next(level_s for level_s in chosen_s if level_s * 1000 >= delay_ms)
        meant_ms = time.time_ns() // 1_000_000 + delay_ms
        producer.produce(topics[level_s], b"%d" % meant_ms)
        producer.poll(0)
    producer.flush()
    for reader in readers:
        reader.start()
    until_s = time.monotonic() + PATIENCE_S
    while len(late_ms) < len(delays_ms):
        if time.monotonic() > until_s:
            raise TimeoutError(f"{len(late_ms)} of {len(delays_ms)} messages came within {PATIENCE_S:g} s")
        time.sleep(0.01)
    late_ms.append(-1)  # tells the readers that all have come
    for reader in readers:
        reader.join()
    return spread(late_ms[:-1])


def _read(servers: str, topic: str, level_ms: int, late_ms: list[int]) -> None:
    client: Any = Consumer({"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False})
    client.assign([TopicPartition(topic, n, 0) for n in range(2)])
    paused: dict[int, int] = {}
    while not late_ms or late_ms[-1] != -1:
        now_ms = time.time_ns() // 1_000_000
        for partition in [partition for partition, at_ms in paused.items() if at_ms <= now_ms]:
            del paused[partition]
            client.resume([TopicPartition(topic, partition)])
        wait_ms = min((at_ms - now_ms for at_ms in paused.values()), default=100)
        record = client.poll(max(0.0, min(wait_ms, 100) / 1000))
        if record is None or record.error():
            continue
        _, produced_ms = record.timestamp()
        now_ms = time.time_ns() // 1_000_000
        if produced_ms + level_ms > now_ms:
            place = TopicPartition(topic, record.partition(), record.offset())
            client.pause([place])
            client.seek(place)
            paused[record.partition()] = produced_ms + level_ms
            continue
        late_ms.append(now_ms - int(record.value()))
    client.close()
