"""Real processes that die: what a reader of committed records sees, when services are killed at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

from retry_topic import Consumer, ConsumerConfig, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.headers import read
from retry_topic.message import Message
from retry_topic.names import dead_topic_of, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Fixed, Rate
from wheel_sched.testing.servers import temporary_server

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka
    from wheel_sched.testing.servers import TemporaryServer

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PATIENCE_S = 120.0
CAP = 4

# The retry service of a group, until stdin ends; a line when it runs.
SERVICE = """
import sys
from retry_topic import RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.policy import Fixed
from wheel_sched.dispatcher import DispatcherConfig

servers, store, namespace, group, delay_ms, cap, lease_ms = sys.argv[1:]
broker = KafkaBroker({"bootstrap.servers": servers, "session.timeout.ms": 2000}, partitions=4)
home = connect(store, broker=broker, namespace=namespace)
policy = RetryPolicy(delay=Fixed(base_ms=int(delay_ms)), max_attempts=int(cap))
config = ServiceConfig(dispatcher=DispatcherConfig(lease_ms=int(lease_ms)))
RetryService(home, group, policy, config=config).start()
print("up", flush=True)
sys.stdin.read()
"""


class Child(NamedTuple):
    """A service in a process of its own."""

    process: subprocess.Popen[bytes]

    def up(self) -> Child:
        """Wait until it runs."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"up\n"
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


class Bench:
    """A group over the session's broker and a server of its own."""

    def __init__(
        self,
        kafka: TemporaryKafka,
        server: TemporaryServer,
        name: str,
        stack: ExitStack,
        committed: Callable[[str], list[Message]],
    ) -> None:
        self.server, self.name, self.topic = server, name, f"{name}-orders"
        self.servers = kafka.bootstrap
        self.broker = KafkaBroker(kafka.bootstrap, partitions=4)
        self.home = connect(server.url, broker=self.broker, namespace=name)
        self._stack = stack
        self.committed = committed
        stack.callback(self.home.close)
        for topic in (self.topic, retry_topic_of(name), redelivery_topic_of(name), dead_topic_of(name)):
            self.broker.create_topic(topic)

    def service(self, *, delay_ms: int = 300, lease_ms: int = 1_000) -> Child:
        """A new process that serves the group."""
        arguments = [self.servers, self.server.url, self.name, self.name, delay_ms, CAP, lease_ms]
        process = subprocess.Popen(
            [sys.executable, "-c", SERVICE, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(_end, process)
        return Child(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGCONT)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def until(condition: Callable[[], bool], told: Callable[[], object] = lambda: "") -> None:
    """Wait for what other processes do."""
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain: {told()}"
        time.sleep(0.05)  # other processes' doing; there is nothing to wait on


@pytest.fixture
def bench(kafka: TemporaryKafka, name: str, committed: Callable[[str], list[Message]]) -> Iterator[Bench]:
    """A bench whose processes and server are gone at the end."""
    with temporary_server() as server, ExitStack() as stack:
        yield Bench(kafka, server, name, stack, committed)


def fails(number: int, attempt: int) -> bool:
    """Whether the handler fails: three in ten, always the same ones."""
    return random.Random(number * 31 + attempt).random() < 0.3


def test_killed_services_lose_and_double_nothing(bench: Bench) -> None:
    """20,000 messages, three in ten fail; services are killed 20 times, a storm of members comes and goes, and the
    server is killed and comes back: each redelivery is there exactly once, and no attempt is above the cap."""
    count = 20_000
    handled: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()

    def handle(message: Message) -> None:
        key = int(message.value), read(message.headers).attempt + 1
        with lock:
            handled[key] += 1
        if fails(*key):
            raise ValueError("three in ten")

    expected = {
        (number, attempt)
        for number in range(count)
        for attempt in range(1, CAP + 1)
        if all(fails(number, before) for before in range(1, attempt))
    }
    services = [bench.service().up(), bench.service().up()]
    config = ConsumerConfig(concurrency=500)
    with Consumer(bench.home, bench.topic, handle, group=bench.name, config=config):
        for start in range(0, count, 2_000):
            messages = [Message(bench.topic, b"%d" % n, b"%d" % (n % 100)) for n in range(start, start + 2_000)]
            assert not any(bench.broker.publish(messages))
        chance = random.Random(7)
        for kill in range(20):
            time.sleep(chance.uniform(0.2, 1.0))  # at random is when they are to be killed
            services.pop(0).kill()
            services.append(bench.service())
            if kill == 6:
                storm = [bench.service() for _ in range(3)]
                time.sleep(1.0)  # they join the group meanwhile
                for child in storm:
                    child.kill()
            if kill == 12:
                bench.server.sigkill()
                bench.server.restart()
        until(lambda: len(handled) >= len(expected), lambda: (len(handled), len(expected), bench.home.store.counts()))
        until(lambda: not sum(bench.home.store.counts().total(state) for state in ("due", "fly", "held")))
        until(lambda: bench.home.store.counts().total("dead") >= sum(fails(*key) for key in expected if key[1] == CAP))
    for child in services:
        child.kill()
    assert set(handled) == expected
    redelivered = Counter(
        (int(message.value), read(message.headers).attempt + 1)
        for message in bench.committed(redelivery_topic_of(bench.name))
    )
    assert [key for key, times in redelivered.items() if times != 1] == []
    assert set(redelivered) == {key for key in expected if key[1] > 1}
    assert max(attempt for _, attempt in handled) == CAP


def test_a_dispatcher_that_stood_still_is_fenced(bench: Bench) -> None:
    """Stopped for longer than its lease with a claim in its hands: another goes on, and what it says later is void."""
    first = bench.service(delay_ms=1, lease_ms=1_000).up()
    count = 6_000
    for n in range(0, count, 500):
        items = range(n, n + 500)
        bench.broker.publish([Message(retry_topic_of(bench.name), b"%d" % i, b"%d" % (i % 10)) for i in items])
    done = redelivery_topic_of(bench.name)
    until(lambda: bench.broker.topics()[done] > 100)
    os.kill(first.process.pid, signal.SIGSTOP)
    second = bench.service(delay_ms=1, lease_ms=1_000).up()
    until(lambda: not sum(bench.home.store.counts().total(state) for state in ("due", "fly", "held")))
    os.kill(first.process.pid, signal.SIGCONT)
    until(lambda: len(bench.committed(done)) >= count, bench.home.store.counts)
    time.sleep(2)  # what the first one still has to say, it says now
    second.kill()
    redelivered = Counter(int(message.value) for message in bench.committed(done))
    assert [key for key, times in redelivered.items() if times != 1] == []
    assert len(redelivered) == count


def test_a_rate_holds_for_what_goes_out_in_transactions(bench: Bench) -> None:
    """A claim brings no more than the rate allows at once, which is one; each comes back exactly once."""
    policy = RetryPolicy(delay=Fixed(base_ms=1), rate=Rate(50, "s"), burst=1)
    count, done = 40, redelivery_topic_of(bench.name)
    with RetryService(bench.home, bench.name, policy) as service:
        assert service.hand_over == "transactions"
        bench.broker.publish([Message(retry_topic_of(bench.name), b"%d" % n) for n in range(count)])
        until(lambda: bench.home.store.counts().ever.get(("completed", retry_topic_of(bench.name)), 0) == count)
        assert service.stats.claims - service.stats.empty_claims >= count
    redelivered = Counter(int(message.value) for message in bench.committed(done))
    assert redelivered == Counter(range(count))
