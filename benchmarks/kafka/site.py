"""Measures the retry service with a Kafka broker and the store's server. Each run has its own topics and namespace."""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from confluent_kafka import Consumer

from benchmarks.kafka.reader import Reader
from benchmarks.rounds import spread
from benchmarks.server import BenchServer, bench_server
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.kafka.records import from_record
from retry_topic.connection import Connection
from retry_topic.intake.from_log import IntakeFromLog
from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState, write
from retry_topic.message.topic_names import redelivery_topic_of, retry_topic_of
from retry_topic.policy import PolicySet, RetryPolicy
from retry_topic.service import RetryService
from tests.servers.kafka import VERSION, temporary_kafka
from wheel_sched.store import DelayStore, Item, LogIntake, open_store

T = TypeVar("T")

_BATCH = 500
_BODY = b"x" * 200


@dataclass(slots=True)
class Site:
    """The Kafka broker and the store's server of a benchmark."""

    servers: str
    server: BenchServer
    version = VERSION

    def connection(self, partitions: int = 2) -> Connection:
        """Open a connection: a store in a new namespace of the server, and a client of the broker.

        `partitions`: how many the topics get that this connection creates.
        """
        store: DelayStore = open_store(self.server.url, namespace=f"n{uuid4().hex[:8]}")
        return Connection(store, KafkaBroker(self.servers, partitions=partitions))


@contextlib.contextmanager
def site() -> Iterator[Site]:
    """Yield a broker and a server that run until the `with` block ends."""
    with bench_server() as server, temporary_kafka() as kafka:
        yield Site(kafka.bootstrap, server)


class Timed(NamedTuple):
    """How late messages were, in ms, and how many came early."""

    spread_ms: dict[str, float]
    early: int


class TakenIn(NamedTuple):
    """What an intake needed, in seconds: by the clock, and of this process's processor time."""

    took_s: float
    processor_s: float


def failed(connection: Connection, group: str, count: int, keys: int = 100) -> None:
    """Put failed messages with `keys` different keys into the group's retry topic, as a consumer does."""
    topic = retry_topic_of(group)
    connection.broker.create_topic(topic)
    for start in range(0, count, 2_000):
        messages = []
        for number in range(start, min(start + 2_000, count)):
            state = RetryState(
                id=f"{group}-{number}",
                attempt=1,
                original_topic="orders",
                original_partition=0,
                original_offset=str(number),
                error_class="builtins.ValueError",
                error_message="no",
                consumer_group=group,
            )
            messages.append(Message(topic, _BODY, b"%d" % (number % keys), write((), state)))
        if any(connection.broker.publish(messages)):
            raise RuntimeError("the broker refused the messages of the benchmark")


def intake(where: Site, count: int) -> float:
    """How many messages per second the intake of the retry service takes in."""
    return count / take_in(where, count).took_s


def take_in(where: Site, count: int, partitions: int = 2, keys: int = 100) -> TakenIn:
    """Let the intake of the retry service take in `count` messages from the first `partitions` partitions."""
    group = f"g{uuid4().hex[:8]}"
    with where.connection(partitions) as connection:
        failed(connection, group, count, keys)
        taking = IntakeFromLog(connection, group, PolicySet(RetryPolicy()), rng=random.Random(1))
        broker: Any = connection.broker
        reader = broker.log_reader(retry_topic_of(group), f"{group}.intake", LogIntake(connection.store).positions)
        try:
            taken = 0
            began_s = processor_s = 0.0
            while taken < count:
                part = reader.poll(_BATCH, 0 if taking.busy else 1_000)
                if part is None:
                    taken += len(taking.finish(_once))
                    continue
                began_s, processor_s = began_s or time.perf_counter(), processor_s or time.process_time()
                taken += len(taking.offer(reader, part, _once))
            return TakenIn(time.perf_counter() - began_s, time.process_time() - processor_s)
        finally:
            reader.close()


def _once(call: Callable[[], T]) -> T:
    return call()


def plain_loop(where: Site, count: int) -> float:
    """How many messages per second a bare loop consumes, stores as items with `schedule`, and commits."""
    group = f"g{uuid4().hex[:8]}"
    with where.connection() as connection:
        failed(connection, group, count)
        client: Any = Consumer(
            {
                "bootstrap.servers": where.servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        client.subscribe([retry_topic_of(group)])
        target = redelivery_topic_of(group)
        taken = 0
        began_s = 0.0
        while taken < count:
            records = [record for record in client.consume(_BATCH, 0.5 if taken == 0 else 0.05) if not record.error()]
            if not records:
                continue
            began_s = began_s or time.perf_counter()
            due_ms = time.time_ns() // 1_000_000 + 3_600_000
            items = []
            for record in records:
                message = from_record(record)
                item_id = f"{record.partition()}:{record.offset()}"
                items.append(Item(item_id, due_ms, encode_body(message.to(target)), "orders"))
            connection.store.schedule(items)
            client.commit(asynchronous=True)
            taken += len(records)
        rate = count / (time.perf_counter() - began_s)
        client.close()
        return rate


def redeliver(where: Site, count: int, early: Callable[[int], object]) -> float:
    """Release `count` messages that are due at once. Returns messages per second.

    The time counts from the due time until the reader has the last message. `early` is called with the number of
    messages that came early.
    """
    group = f"g{uuid4().hex[:8]}"
    with where.connection() as connection:
        service = RetryService(connection, group)
        connection.broker.create_topic(redelivery_topic_of(group))
        due_ms = _schedule(connection, group, [4_000] * count)
        with service, Reader(where.servers, redelivery_topic_of(group), 2) as reader:
            reader.wait(count)
            last_ms = max(at_ms for _, at_ms in reader.came)
        early(sum(at_ms < int(value) for value, at_ms in reader.came))
        return count * 1000 / (last_ms - due_ms)


def lateness(where: Site, delays_ms: Sequence[int]) -> Timed:
    """Measure how late messages with these delays reach the reader."""
    group = f"g{uuid4().hex[:8]}"
    with where.connection() as connection:
        service = RetryService(connection, group)
        connection.broker.create_topic(redelivery_topic_of(group))
        with Reader(where.servers, redelivery_topic_of(group), 2) as reader, service:
            _warm(connection, reader, group)
            gc.collect()
            gc.freeze()  # as `wheel-sched serve` does
            _schedule(connection, group, delays_ms)
            reader.wait(len(delays_ms) + 1)
            gc.unfreeze()
        return timed(reader)


def timed(reader: Reader) -> Timed:
    """The lateness of the reader's records. A record's value is its due time in ms; a value of 0 does not count."""
    late_ms = [at_ms - int(value) for value, at_ms in reader.came if value != b"0"]
    return Timed(spread(late_ms), sum(late < 0 for late in late_ms))


def _warm(connection: Connection, reader: Reader, group: str) -> None:
    """Let one message be released before the measurement, so that the service acquires the shard."""
    topic = redelivery_topic_of(group)
    connection.store.schedule([Item("warm", 0, encode_body(Message(topic, b"0")), topic)])
    reader.wait(1)


def _schedule(connection: Connection, group: str, delays_ms: Sequence[int]) -> int:
    """Store a message for each delay; its value is its due time. Returns the due time of the first, in epoch ms."""
    topic = redelivery_topic_of(group)
    now_ms = connection.store.now_ms()
    for start in range(0, len(delays_ms), _BATCH):
        items = []
        for number, delay_ms in enumerate(delays_ms[start : start + _BATCH], start):
            due_ms = now_ms + delay_ms
            message = Message(topic, b"%d" % due_ms, b"%d" % number)
            items.append(Item(f"{group}-{number}", due_ms, encode_body(message), topic))
        connection.store.schedule(items)
    return now_ms + delays_ms[0]
