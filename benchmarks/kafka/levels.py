"""Delays by pause and seek, as consumers without a delay store make them.

There are two designs: a topic for each level of delay, or a single topic for all delays. With Spring Kafka's retry
topics a message goes to the topic of the shortest level that is not shorter than its delay. So it waits for no other
message, but mostly longer than its delay. In a single topic each message waits for all messages before it. A consumer
that reads a record too early pauses the partition, seeks back to the record, and resumes when the record is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.rounds import spread

LEVELS_S = (1, 5, 15, 30, 60)
PATIENCE_S = 180.0


class Paused(NamedTuple):
    """The p50, the p99 and the maximum of lateness, in ms.

    `meant`: a topic per level, counted from the message's due time. `beyond_level`: the same messages, counted from the
    end of the level. `one_topic`: a single topic, counted from the message's due time.
    """

    meant: dict[str, float]
    beyond_level: dict[str, float]
    one_topic: dict[str, float]


class _Came(NamedTuple):
    meant_ms: int  # how long after its due time the message came
    beyond_ms: int  # how long after the end of its level the message came


def pause_and_seek(servers: str, delays_ms: Sequence[int], longest_s: float) -> Paused:
    """Measure how late messages with these delays are. Both designs run at the same time, with the same messages.

    Raises:
        TimeoutError: not all messages have arrived after `PATIENCE_S` seconds.
    """
    run = uuid4().hex[:8]
    levels_ms = [level_s * 1000 for level_s in LEVELS_S if level_s < longest_s] + [round(longest_s * 1000)]
    topics = {f"levels-{run}-{level_ms}": level_ms for level_ms in levels_ms}
    mixed = f"mixed-{run}"
    admin: Any = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, 2, 1) for topic in (*topics, mixed)]).values():
        future.result()
    producer: Any = Producer({"bootstrap.servers": servers, "linger.ms": 1})
    for delay_ms in delays_ms:
        level_ms = next(level_ms for level_ms in levels_ms if level_ms >= delay_ms)
        now_ms = time.time_ns() // 1_000_000
        for topic, due_ms in ((f"levels-{run}-{level_ms}", now_ms + level_ms), (mixed, now_ms + delay_ms)):
            producer.produce(topic, b"%d %d" % (now_ms + delay_ms, due_ms))
        producer.poll(0)
    producer.flush()
    by_level: list[_Came] = []
    in_one: list[_Came] = []
    over = threading.Event()
    readers = [
        threading.Thread(
            target=_read, args=(servers, topic, by_level if topic in topics else in_one, over), daemon=True
        )
        for topic in (*topics, mixed)
    ]
    for reader in readers:
        reader.start()
    until_s = time.monotonic() + PATIENCE_S
    while (least := min(len(by_level), len(in_one))) < len(delays_ms):
        if time.monotonic() > until_s:
            raise TimeoutError(f"{least} of {len(delays_ms)} messages came within {PATIENCE_S:g} s")
        time.sleep(0.01)
    over.set()
    for reader in readers:
        reader.join()
    return Paused(
        spread([came.meant_ms for came in by_level]),
        spread([came.beyond_ms for came in by_level]),
        spread([came.meant_ms for came in in_one]),
    )


def _read(servers: str, topic: str, found: list[_Came], over: threading.Event) -> None:
    settings = {"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    client: Any = Consumer(settings)  # a long fetch of one partition would delay a resumed one
    client.assign([TopicPartition(topic, n, 0) for n in range(2)])
    paused: dict[int, int] = {}
    while not over.is_set():
        now_ms = time.time_ns() // 1_000_000
        for partition in [partition for partition, at_ms in paused.items() if at_ms <= now_ms]:
            del paused[partition]
            client.resume([TopicPartition(topic, partition)])
        wait_ms = min((at_ms - now_ms for at_ms in paused.values()), default=100)
        record = client.poll(max(0.0, min(wait_ms, 100) / 1000))
        if record is None or record.error():
            continue
        meant_ms, due_ms = map(int, record.value().split())
        now_ms = time.time_ns() // 1_000_000
        if due_ms > now_ms:
            place = TopicPartition(topic, record.partition(), record.offset())
            client.pause([place])
            client.seek(place)
            paused[record.partition()] = due_ms
            continue
        found.append(_Came(now_ms - meant_ms, now_ms - due_ms))
    client.close()
