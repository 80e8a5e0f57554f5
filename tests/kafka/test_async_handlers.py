"""Coroutine handlers over a real broker: they run concurrently, are retried, and end at the policy's attempt limit."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from retry_topic import Consumer, ConsumerConfig, DeadLetters, Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message.headers import read
from retry_topic.policy import Fixed

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

COUNT, CAP, SIDE_BY_SIDE = 2_000, 3, 50


def test_coroutines_fail_are_retried_and_die_at_the_cap(kafka: TemporaryKafka, name: str, until: Until) -> None:
    """Of 2,000 messages every tenth fails once and every fiftieth always fails. Each attempt is handled once, and no
    message has more attempts than its policy allows. Many handlers run at a time, in one event loop."""
    attempts: Counter[tuple[bytes, int]] = Counter()
    loops: set[asyncio.AbstractEventLoop] = set()
    threads: set[int] = set()
    running = most = 0

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        loops.add(asyncio.get_running_loop())
        threads.add(threading.get_ident())
        attempt = read(message.headers).attempt + 1
        attempts[message.value, attempt] += 1
        try:
            await asyncio.sleep(0)
            number = int(message.value)
            if number % 50 == 0 or (number % 10 == 0 and attempt == 1):
                raise OSError("not yet")
        finally:
            running -= 1

    expected = Counter((b"%d" % n, 1) for n in range(COUNT))
    expected += Counter((b"%d" % n, 2) for n in range(0, COUNT, 10))
    expected += Counter((b"%d" % n, 3) for n in range(0, COUNT, 50))
    broker = KafkaBroker(kafka.bootstrap, partitions=3)
    policy = RetryPolicy(delay=Fixed(base_ms=50), max_attempts=CAP)
    with connect("memory:", broker=broker, namespace=name) as connection:
        broker.create_topic(name)
        assert not any(broker.publish([Message(name, b"%d" % n, b"%d" % (n % 70)) for n in range(COUNT)]))
        config = ConsumerConfig(concurrency=SIDE_BY_SIDE)
        with (
            RetryService(connection, name, policy),
            Consumer(connection, name, handle, group=name, config=config) as consumer,
        ):
            until(
                lambda: attempts.total() >= expected.total() and connection.store.counts().total("dead") >= COUNT // 50,
                lambda: (attempts.total(), connection.store.counts(), consumer.stats),
            )
        stats = consumer.stats
        letters = list(DeadLetters(connection).select())
    assert attempts == expected
    assert {letter.state.attempt for letter in letters} == {CAP}
    assert (len(loops), len(threads)) == (1, 1)
    assert most > 1
    assert (stats.retried, stats.in_flight) == (COUNT // 10 + 2 * COUNT // 50, 0)
