"""While handlers are blocked, the fetch buffer stays within its limit, and the member stays in its group."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from retry_topic import Consumer, ConsumerConfig, Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.kafka.consumer import KafkaConsumer
from retry_topic.policy import Fixed

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

COUNT, BYTES, LIMIT = 10_000, 10_000, 4 * 1024 * 1024
SESSION_MS = 6_000
STOOD_S = 240.0  # an upper bound: longer than the handler is blocked
LOOK_S = 0.005  # short, so that the test sees a brief peak of memory


def test_a_handler_that_stands_still_holds_up_fetching_and_nothing_else(
    kafka: TemporaryKafka, name: str, until: Until
) -> None:
    """The topic has 10,000 records of 10 kB, the buffer 4 MiB. The handler is blocked for longer than a session.

    Meanwhile memory stays within the buffer, the member is not expelled, and each record is handled once.
    """
    broker = KafkaBroker(
        {"bootstrap.servers": kafka.bootstrap, "session.timeout.ms": SESSION_MS}, partitions=2, buffer_bytes=LIMIT
    )
    broker.create_topic(name)
    padding = bytes(BYTES - 5)
    for start in range(0, COUNT, 1_000):
        assert not any(broker.publish([Message(name, b"%05d" % n + padding) for n in range(start, start + 1_000)]))
    handled: Counter[bytes] = Counter()
    lives: set[int] = set()
    go_on = threading.Event()
    most = 0

    def handle(message: Message) -> None:
        assert go_on.wait(STOOD_S)
        handled[message.value[:5]] += 1

    def watch() -> int:
        nonlocal most
        assert isinstance(member, KafkaConsumer)
        most = max(most, member._tracker.fetched_bytes)
        lives.add(member._tracker.life)
        return member._tracker.fetched

    config = ConsumerConfig(concurrency=100, idle_ms=SESSION_MS)
    with connect("memory:", broker=broker, namespace=name) as connection:
        with (
            RetryService(connection, name, RetryPolicy(delay=Fixed(base_ms=50))),
            Consumer(connection, name, handle, group=name, config=config) as consumer,
        ):
            member = consumer._consumer
            until(lambda: watch() > 100, lambda: member, pause_s=LOOK_S)
            stands_until_s = time.monotonic() + 1.3 * SESSION_MS / 1000
            until(lambda: watch() < 0 or time.monotonic() > stands_until_s, lambda: member, pause_s=LOOK_S)
            assert not handled
            go_on.set()
            until(lambda: watch() < 0 or handled.total() >= COUNT, lambda: (handled.total(), member), pause_s=LOOK_S)
        assert consumer.stats.acknowledged == COUNT
    assert set(handled.values()) == {1}
    assert len(handled) == COUNT
    assert len(lives) == 1, "the member was expelled from its group"
    assert most <= LIMIT
