"""Order per key with real processes that are killed and suspended: no message overtakes another, and none is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import redis as redis_py

from retry_topic import Message, connect
from wheel_sched.store.ordering import OrderedKeys

if TYPE_CHECKING:
    import redis

pytestmark = [pytest.mark.real, pytest.mark.slow]

KEYS, EACH, BLOWS = 12, 24, 5
PATIENCE_S = 100.0

# Its handler fails for a third of the messages once or twice. It writes each call to the server before it returns.
CONSUMER = """
import sys, zlib
import redis
from retry_topic import Consumer, ConsumerConfig, connect

seen = redis.Redis.from_url(sys.argv[1])

def handle(message):
    seen.rpush("seen", b"%s begun" % message.value)
    attempts = seen.incr(b"attempts:" + message.value)
    if attempts <= zlib.crc32(message.value) % 9 - 6:
        raise OSError("not yet")
    seen.rpush("seen", b"%s done" % message.value)

config = ConsumerConfig(ordering="key", idle_ms=1_000, concurrency=4, crash_cap=1_000)
with connect(sys.argv[1]) as connection, Consumer(connection, "orders", handle, group="billing", config=config):
    print("ready", flush=True)
    sys.stdin.read()
"""

SERVICE = """
import sys
from retry_topic import RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.policy import Fixed
from wheel_sched.dispatcher import DispatcherConfig

policy = RetryPolicy(delay=Fixed(base_ms=30), max_attempts=None)
config = ServiceConfig(batch=20, idle_ms=1_000, dispatcher=DispatcherConfig(lease_ms=1_000))
with connect(sys.argv[1]) as connection, RetryService(connection, "billing", policy, config=config):
    print("ready", flush=True)
    sys.stdin.read()
"""


class Fleet:
    """Two consumer processes and a service process. A process that was killed is started again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stack = ExitStack()
        self.children = [self._start(script) for script in (CONSUMER, CONSUMER, SERVICE)]

    def _start(self, script: str) -> tuple[str, subprocess.Popen[bytes]]:
        child = subprocess.Popen(
            [sys.executable, "-c", script, self.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.stack.callback(_end, child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return script, child

    def kill(self, place: int) -> None:
        script, child = self.children[place]
        child.kill()
        child.wait(10)
        self.children[place] = self._start(script)

    def suspend(self, place: int, seconds: float) -> None:
        _, child = self.children[place]
        child.send_signal(signal.SIGSTOP)
        time.sleep(seconds)  # the process is suspended for longer than its leases
        child.send_signal(signal.SIGCONT)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait(10)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


@pytest.fixture
def fleet(redis_url: str) -> Iterator[Fleet]:
    with connect(redis_url) as connection:
        connection.broker.create_topic("orders")
    found = Fleet(redis_url)
    yield found
    found.stack.close()


def judge(seen: list[bytes]) -> dict[bytes, list[int]]:
    """Return each key's numbers in the order of their first success. Fail if a number began before the previous number
    of its key was done."""
    done: dict[bytes, list[int]] = defaultdict(list)
    for line in seen:
        value, what = line.split()
        key, number = value.split(b":")
        if what == b"begun":
            assert int(number) <= len(done[key]), f"{value!r} began when these were done of its key: {done[key]}"
        elif int(number) not in done[key]:
            done[key].append(int(number))
    return done


@pytest.mark.timeout(240)
def test_order_is_kept_per_key_through_kills_and_stops_and_nothing_is_lost(
    fleet: Fleet, redis_client: redis.Redis
) -> None:
    """At random, a consumer or the service is killed, or a consumer is suspended for longer than its leases. All
    messages are handled, and those of one key in order."""
    rng = random.Random()
    broker = connect(fleet.url)
    seen_client = redis_py.Redis.from_url(fleet.url)
    with broker as connection, seen_client:
        for number in range(EACH):
            if number % (EACH // BLOWS + 1) == 2:
                if rng.random() < 0.25:
                    fleet.suspend(rng.choice((0, 1)), 4.5)
                else:
                    fleet.kill(rng.choice((0, 1, 2)))
            connection.broker.publish([Message("orders", b"%d:%d" % (key, number), b"%d" % key) for key in range(KEYS)])
            time.sleep(0.05)  # so that processes are killed while messages are handled
        expected = {b"%d" % key: list(range(EACH)) for key in range(KEYS)}
        until_s = time.monotonic() + PATIENCE_S
        while (done := judge(seen_client.lrange("seen", 0, -1))) != expected:
            assert time.monotonic() < until_s, (
                done,
                list(OrderedKeys(connection.store).closed()),
                connection.store.counts(),
            )
            time.sleep(0.1)  # polls until other processes have finished
        locks = OrderedKeys(connection.store)
        while locks.counts([])[0] or connection.store.counts().total("held"):
            assert time.monotonic() < until_s, list(locks.closed())
            time.sleep(0.05)  # polls until other processes have finished
        assert connection.store.counts().total("dead") == 0
