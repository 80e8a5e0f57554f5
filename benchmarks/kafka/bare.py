"""The baseline of redelivery: bare loops over transactional producers, as the manual of these producers shows them.

The loops send the same records in transactions, and commit an offset in each transaction. They have no store, no claims
and no answers for single messages, and another process could not continue their work.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.kafka.reader import Reader
from benchmarks.kafka.site import Site, Timed, timed
from retry_topic.brokers.kafka import KafkaBroker
from wheel_sched.store import MAX_BATCH

_TIMEOUT_S = 30


def bare_transactions(where: Site, count: int) -> float:
    """Send `count` messages in transactions as large as a claim. Returns messages per second.

    The time counts from the first transaction until the reader has the last message.
    """
    with _Bare(where, producers=1, linger_ms=1) as bare, Reader(where.servers, bare.topic, 2) as reader:
        began_s = time.time()
        for start in range(0, count, MAX_BATCH):
            bare.send([b"%d" % number for number in range(start, min(start + MAX_BATCH, count))])
        reader.wait(count)
        last_ms = max(at_ms for _, at_ms in reader.came)
    return count * 1000 / (last_ms - began_s * 1000)


def bare_lateness(where: Site, delays_ms: Sequence[int]) -> Timed:
    """How late messages with these delays reach the reader, when a loop sends all due messages and then sleeps."""
    with _Bare(where, producers=2, linger_ms=0) as bare, Reader(where.servers, bare.topic, 2) as reader:
        for _ in range(2):  # once for each producer, because its first transaction opens connections
            bare.send([b"0"])
        reader.wait(2)
        now_ms = time.time_ns() // 1_000_000
        dues_ms = sorted(now_ms + delay_ms for delay_ms in delays_ms)
        sent = 0
        while sent < len(dues_ms):
            now_ms = time.time_ns() // 1_000_000
            due = bisect_right(dues_ms, now_ms)
            if due > sent:
                bare.send([b"%d" % due_ms for due_ms in dues_ms[sent:due]])
                sent = due
            else:
                time.sleep(max(0.0, dues_ms[sent] / 1000 - time.time()))
        reader.wait(2 + len(dues_ms))
        return timed(reader)


class _Bare:
    """A topic, and transactional producers that take turns."""

    def __init__(self, where: Site, *, producers: int, linger_ms: int) -> None:
        run = uuid4().hex[:8]
        self.topic, self._offsets = f"bare-{run}", f"bare-{run}.offsets"
        broker = KafkaBroker(where.servers, partitions=2)
        for name in (self.topic, self._offsets):
            broker.create_topic(name)
        broker.close()
        servers = {"bootstrap.servers": where.servers}
        self._member: Any = Consumer({**servers, "group.id": self._offsets})
        settings = {**servers, "linger.ms": linger_ms, "compression.type": "lz4"}
        self._producers: list[Any] = [
            Producer({**settings, "transactional.id": f"{run}-{turn}"}) for turn in range(producers)
        ]
        for producer in self._producers:
            producer.init_transactions(_TIMEOUT_S)
        self._sent = 0

    def __enter__(self) -> _Bare:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._member.close()

    def send(self, values: Sequence[bytes]) -> None:
        """Send the values in one transaction."""
        producer = self._producers[0]
        self._producers.append(self._producers.pop(0))
        producer.begin_transaction()
        for number, value in enumerate(values, self._sent):
            producer.produce(self.topic, value, b"%d" % number)
            producer.poll(0)
        position = TopicPartition(self._offsets, 0, self._sent)
        producer.send_offsets_to_transaction([position], self._member.consumer_group_metadata(), _TIMEOUT_S)
        producer.commit_transaction(_TIMEOUT_S)
        self._sent += len(values)
