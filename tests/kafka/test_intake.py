"""The intake alone, under load: each record of a retry topic is in the store once, whoever dies over it."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Home, Message, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.consumer.failing import failed_message
from retry_topic.headers import RetryState, read, write
from retry_topic.message import Source
from retry_topic.names import dead_topic_of, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Failure
from retry_topic.wire import decode_body
from wheel_sched.errors import StoreError
from wheel_sched.testing.servers import temporary_server

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka
    from wheel_sched.testing.servers import TemporaryServer

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

COUNT, KILLS, PARTITIONS = 20_000, 20, 4
PATIENCE_S = 180.0

# The retry service of a group, until stdin ends: nothing of what it takes in comes due.
SERVICE = """
import sys
from retry_topic import RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.policy import Fixed

servers, store, name = sys.argv[1:]
broker = KafkaBroker({"bootstrap.servers": servers, "session.timeout.ms": 2000})
policy = RetryPolicy(delay=Fixed(base_ms=86_400_000))
with connect(store, broker=broker, namespace=name) as home, RetryService(
    home, name, policy, config=ServiceConfig(batch=100)
):
    sys.stdin.read()
"""


class Fleet:
    """Services of a group, each in a process of its own."""

    def __init__(self, kafka: TemporaryKafka, server: TemporaryServer, name: str, stack: ExitStack) -> None:
        self._arguments = kafka.bootstrap, server.url, name
        self._stack = stack

    def start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([sys.executable, "-c", SERVICE, *self._arguments], stdin=subprocess.PIPE)
        self._stack.callback(_end, child)
        return child


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait(30)
    if child.stdin is not None:
        child.stdin.close()


@pytest.fixture
def server() -> Iterator[TemporaryServer]:
    with temporary_server() as server:
        yield server


@pytest.fixture
def home(kafka: TemporaryKafka, server: TemporaryServer, name: str) -> Iterator[Home]:
    """The group's topics, and the store."""
    broker = KafkaBroker(kafka.bootstrap, partitions=PARTITIONS)
    with connect(server.url, broker=broker, namespace=name) as home:
        for topic in (retry_topic_of(name), redelivery_topic_of(name), dead_topic_of(name)):
            broker.create_topic(topic)
        yield home


def records(group: str, first: int, last: int) -> Iterator[Message]:
    """Failed messages as consumers write them; of each hundred some are dead, told twice, without headers, or under an
    id that is another one's."""
    for n in range(first, last):
        origin = Message(
            "orders", b"%d" % n, b"%d" % (n % 100), (("trace", b"%d" % n),), Source("orders", 0, str(n), 1)
        )
        failure = Failure(error_class="builtins.OSError", message=f"order {n}: no answer")
        if n % 100 in (33, 34):
            failure = replace(failure, verdict="dead")
        told = failed_message(group, origin, RetryState(), failure)
        if n % 100 == 7:
            told = origin.to(told.topic)
        if n % 100 == 13:
            one_before = failed_message(
                group, replace(origin, source=Source("orders", 0, str(n - 1), 1)), RetryState(), failure
            )
            told = origin.to(told.topic, write(origin.headers, read(one_before.headers)))
        yield told
        if n % 100 == 21:
            yield told


def until(condition: Callable[[], bool], told: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if condition():
                return
        except StoreError:
            pass  # its server is being restarted
        assert time.monotonic() < until_s, f"waited in vain: {told()}"
        time.sleep(0.002)  # other processes' doing; there is nothing to wait on


def everything(home: Home, state: Any) -> Counter[int]:
    """How often each message is there."""
    found: Counter[int] = Counter()
    cursor = None
    while True:
        page = home.store.list_items(state, cursor=cursor, limit=500)
        found.update(int(decode_body(one.body).value) for one in page.found)
        if (cursor := page.cursor) is None:
            return found


def told_dead(home: Home, name: str, count: int) -> set[int]:
    """What the dead topic has, once so many are there."""
    reader = home.broker.consumer([dead_topic_of(name)], f"{name}-looker")
    found: set[int] = set()
    until_s = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < until_s, len(found)
        found.update(int(delivery.message.value) for delivery in reader.poll(500, 500))
    reader.close()
    return found


def test_each_record_is_taken_in_once_whoever_dies(
    kafka: TemporaryKafka, server: TemporaryServer, home: Home, name: str
) -> None:
    """20,000 records, a service killed 20 times while it takes them in, a storm of members that come and are killed,
    the store's server killed and back: each is there once, and the dead are told."""
    chance = random.Random()
    expected_dead = {n for n in range(COUNT) if n % 100 in (33, 34)}
    with ExitStack() as stack:
        fleet = Fleet(kafka, server, name, stack)
        running = [fleet.start(), fleet.start()]
        step = COUNT // KILLS
        for kill in range(KILLS):
            accepted = home.store.counts().happened("accepted")
            assert not any(home.broker.publish([*records(name, kill * step, (kill + 1) * step)]))
            # into its work: some of these are in, the rest is on its way
            until(lambda seen=accepted: home.store.counts().happened("accepted") > seen, home.store.counts)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.05))  # at random is when they are to be killed
            running.pop(chance.randrange(2)).kill()
            running.append(fleet.start())
            if kill == 6:
                storm = [fleet.start() for _ in range(3)]
                time.sleep(1.5)  # they join the group meanwhile
                for child in storm:
                    child.kill()
            if kill == 12:
                server.sigkill()
                server.restart()
        until(lambda: home.store.counts().total("due") >= COUNT - len(expected_dead), home.store.counts)
        until(lambda: home.store.counts().total("dead") >= len(expected_dead), home.store.counts)
        until(lambda: _taken_in(home, name), home.broker.topics)
    assert everything(home, "due") == Counter(n for n in range(COUNT) if n not in expected_dead)
    assert everything(home, "dead") == Counter(expected_dead)
    assert told_dead(home, name, len(expected_dead)) == expected_dead


def _taken_in(home: Home, name: str) -> bool:
    """Whether the store's positions are at the ends of the retry topic."""
    from confluent_kafka import TopicPartition

    from retry_topic.names import intake_group_of, source_of

    broker: Any = home.broker
    topic = retry_topic_of(name)
    ends = broker.topology.ends([TopicPartition(topic, number) for number in range(PARTITIONS)])
    sources = [source_of(intake_group_of(name), broker.topic_id(topic), number) for number in range(PARTITIONS)]
    positions = home.store.positions(sources)
    return all((position or 0) >= ends[topic, number] for number, position in enumerate(positions))
