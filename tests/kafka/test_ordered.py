"""Order per key over a real broker, with real processes that are killed, and partitions that go from one to another."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import redis

from retry_topic import Message, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.names import dead_topic_of, redelivery_topic_of, retry_topic_of
from wheel_sched.store.key_gates import KeyGates
from wheel_sched.testing.servers import temporary_server

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

KEYS, EACH, PARTITIONS = 40, 60, 4
PATIENCE_S = 180.0

_HOME = """
import sys
from retry_topic.brokers.kafka import KafkaBroker
servers, store, name = sys.argv[1:]
broker = KafkaBroker({"bootstrap.servers": servers, "session.timeout.ms": 2000}, delivery_timeout_ms=2_000)
"""

# Fails two in nine of the messages, half of them twice; what it does is told to the store's server before it answers.
CONSUMER = (
    _HOME
    + """
import zlib
import redis
from retry_topic import Consumer, ConsumerConfig, connect

told = redis.Redis.from_url(store)

def handle(message):
    told.rpush("told", b"%s begun" % message.value)
    tries = told.incr(b"tries:" + message.value)
    if tries <= zlib.crc32(message.value) % 9 - 6:
        raise OSError("not yet")
    told.rpush("told", b"%s done" % message.value)

config = ConsumerConfig(ordering="key", idle_ms=2_000, concurrency=4, crash_cap=1_000)
with connect(store, broker=broker, namespace=name, shards=2) as home, Consumer(
    home, name + "-orders", handle, group=name, config=config
):
    print("ready", flush=True)
    sys.stdin.read()
"""
)

SERVICE = (
    _HOME
    + """
from retry_topic import RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.policy import Fixed
from wheel_sched.dispatcher import DispatcherConfig

policy = RetryPolicy(delay=Fixed(base_ms=30), max_attempts=None)
config = ServiceConfig(batch=20, idle_ms=2_000, dispatcher=DispatcherConfig(lease_ms=1_000))
with connect(store, broker=broker, namespace=name, shards=2) as home, RetryService(home, name, policy, config=config):
    print("ready", flush=True)
    sys.stdin.read()
"""
)


class Fleet:
    """Consumers and a service, each in a process of its own."""

    def __init__(self, servers: str, store: str, name: str) -> None:
        self.store = store
        self._arguments = servers, store, name
        self.stack = ExitStack()
        self.children = [self._start(script) for script in (CONSUMER, CONSUMER, SERVICE)]

    def _start(self, script: str) -> tuple[str, subprocess.Popen[bytes]]:
        child = subprocess.Popen(
            [sys.executable, "-c", script, *self._arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.stack.callback(_end, child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return script, child

    def join(self) -> None:
        """One consumer more: partitions go to it."""
        self.children.append(self._start(CONSUMER))

    def kill(self, place: int) -> None:
        """And start it anew."""
        script, child = self.children[place]
        child.kill()
        child.wait(30)
        self.children[place] = self._start(script)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait(30)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


@pytest.fixture
def fleet(kafka: TemporaryKafka, name: str) -> Iterator[Fleet]:
    """Over the session's broker and a store of its own, which keeps what handlers tell as well."""
    with temporary_server() as server:
        broker = KafkaBroker(kafka.bootstrap, partitions=PARTITIONS)
        with connect(server.url, broker=broker, namespace=name, shards=2):
            for topic in (f"{name}-orders", retry_topic_of(name), redelivery_topic_of(name), dead_topic_of(name)):
                broker.create_topic(topic)
        found = Fleet(kafka.bootstrap, server.url, name)
        yield found
        found.stack.close()


def judge(told: list[bytes]) -> dict[bytes, list[int]]:
    """Per key the numbers in the order in which they were done first; nothing may begin before the one before it."""
    done: dict[bytes, list[int]] = defaultdict(list)
    for line in told:
        value, what = line.split()
        key, number = value.split(b":")
        if what == b"begun":
            assert int(number) <= len(done[key]), f"{value!r} began when only {done[key]} of its key were done"
        elif int(number) not in done[key]:
            done[key].append(int(number))
    return done


def test_order_is_kept_per_key_through_kills_and_rebalances(fleet: Fleet, kafka: TemporaryKafka, name: str) -> None:
    """2,400 messages; both consumers and the service, which takes in and dispatches, are killed three times each in any
    order, another member joins: each key is handled in order, nothing lost."""
    blows = [0, 1, 2] * 3
    random.shuffle(blows)
    broker = KafkaBroker(kafka.bootstrap)
    with (
        connect(fleet.store, broker=broker, namespace=name, shards=2) as home,
        redis.Redis.from_url(fleet.store) as told,
    ):
        for number in range(EACH):
            if number % 6 == 5 and blows:
                fleet.kill(blows.pop())
            if number == EACH // 2:
                fleet.join()
            messages = [Message(f"{name}-orders", b"%d:%d" % (key, number), b"%d" % key) for key in range(KEYS)]
            assert not any(broker.publish(messages))
            time.sleep(0.1)  # so that the blows fall while messages are handled
        assert not blows
        expected = {b"%d" % key: list(range(EACH)) for key in range(KEYS)}
        until_s = time.monotonic() + PATIENCE_S
        gates = KeyGates(home.store)
        while (done := judge(told.lrange("told", 0, -1))) != expected:
            assert time.monotonic() < until_s, (done, list(gates.closed()), home.store.counts())
            time.sleep(0.3)  # other processes' doing
        while gates.counts([])[0] or home.store.counts().total("held"):
            assert time.monotonic() < until_s, list(gates.closed())
            time.sleep(0.05)  # other processes' doing
        assert home.store.counts().total("dead") == 0
