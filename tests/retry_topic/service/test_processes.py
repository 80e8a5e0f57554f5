"""Real processes that are killed: consumers that one message kills, and consumers and services in the
middle of work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

from retry_topic import RetryPolicy
from retry_topic.message.headers import RetryState, write
from retry_topic.message.topic_names import dead_topic_of, retry_topic_of

if TYPE_CHECKING:
    from conftest import Bench, Handler

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(200)]  # many processes, one after another

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]
RETRY = retry_topic_of("billing")

# Prints a line for each message, until stdin ends. `poison` ends the process at once, and `hang` never returns.
CONSUMER = """
import os, sys, threading
from retry_topic import Consumer, ConsumerConfig, connect
from retry_topic.message.headers import read

def handle(message):
    os.write(1, b"%s %d\\n" % (message.value, read(message.headers).attempt + 1))
    if message.value == b"poison":
        os._exit(9)
    if message.value == b"hang":
        threading.Event().wait()

idle_ms, crash_cap, concurrency = map(int, sys.argv[2:])
config = ConsumerConfig(idle_ms=idle_ms, crash_cap=crash_cap, concurrency=concurrency)
with connect(sys.argv[1]) as connection, Consumer(connection, "orders", handle, group="billing", config=config):
    sys.stdin.read()
"""

# Takes retry records in and kills itself at the named point of the second batch.
SERVICE = """
import os, signal, sys
from retry_topic import RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.brokers.redis_streams.consumer import RedisStreamsConsumer
from retry_topic.policy import Fixed
from wheel_sched.store import DelayStore
from wheel_sched.store.attempt_counts import AttemptCounts

point, calls = sys.argv[2], []

def dying(cls, name, counts=lambda *args: True):
    real = getattr(cls, name)
    def call(self, *args, **more):
        if point == f"before-{name}" and counts(*args) and calls.append(1) is None and len(calls) == 2:
            os.write(1, b"reached\\n")
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(self, *args, **more)
        if point == f"after-{name}" and counts(*args) and calls.append(1) is None and len(calls) == 2:
            os.write(1, b"reached\\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    setattr(cls, name, call)

dying(AttemptCounts, "schedule")
dying(DelayStore, "bury")
dying(AttemptCounts, "raise_to", lambda counts: any(attempts for _, attempts, _ in counts))
dying(RedisStreamsConsumer, "ack")
dying(RedisStreamsConsumer, "forward")
connection = connect(sys.argv[1])
policy = RetryPolicy(delay=Fixed(base_ms=int(sys.argv[3])), max_attempts=2)
RetryService(connection, "billing", policy, config=ServiceConfig(batch=10, idle_ms=300)).start()
sys.stdin.read()
"""


class Child(NamedTuple):
    """A process and its output."""

    process: subprocess.Popen[bytes]

    def lines(self) -> list[bytes]:
        """Wait for the end of the process. Return its remaining output lines."""
        out, _ = self.process.communicate(timeout=60)
        return out.splitlines()

    def line(self) -> bytes:
        """Wait for the next output line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Start a script in another process, which is killed at the end of the test."""
    with ExitStack() as stack:

        def started(script: str, *args: object) -> Child:
            process = subprocess.Popen(
                [sys.executable, "-c", script, *map(str, args)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(_end, process)
            return Child(process)

        yield started


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def test_a_message_that_kills_its_consumers_is_poison(
    server: Bench, policy: Policy, start: Callable[..., Child]
) -> None:
    """One message kills each consumer that handles it, and a new consumer is started each time. The message becomes a
    dead letter, and all other messages are handled."""
    server.serve(policy())
    server.publish(*(b"%d" % n for n in range(10)), b"poison", *(b"%d" % n for n in range(10, 20)))
    printed: list[bytes] = []
    deaths = 0
    while not server.connection.store.counts().total("dead"):
        child = start(CONSUMER, server.url, 1_000, 3, 8)
        server.until(lambda c=child: c.process.poll() is not None or server.connection.store.counts().total("dead"))  # type: ignore[misc]  # the loop's own child
        deaths += child.process.poll() == 9
        if child.process.poll() is None:
            assert child.process.stdin is not None
            child.process.stdin.close()
            child.process.stdin = None
        printed += child.lines()
        time.sleep(1.0)  # as long as `idle_ms`, so that another consumer gets the child's messages
    (letter,) = server.dead()
    assert letter.message is not None
    assert letter.message.value == b"poison"
    assert (deaths, letter.state.error_class, letter.state.attempt) == (3, "poison", 1)
    last = start(CONSUMER, server.url, 1_000, 3, 8)
    others = {b"%d" % n for n in range(20)}
    seen = {line.split()[0] for line in printed}
    while not others <= seen:
        seen.add(last.line().split()[0])
    attempts = Counter(line for line in printed if line.startswith(b"poison"))
    assert attempts == {b"poison 1": 3}  # a crash is no attempt


def test_a_killed_consumer_loses_nothing(
    server: Bench, handler: Handlers, policy: Policy, start: Callable[..., Child]
) -> None:
    """The unsettled messages of the killed consumer go to another consumer. The settled ones do not."""
    server.publish(*(b"%d" % n for n in range(6)), b"hang", *(b"%d" % n for n in range(6, 9)))
    child = start(CONSUMER, server.url, 300, 5, 1)
    first = [child.line() for _ in range(7)]
    assert first == [b"%d 1" % n for n in range(6)] + [b"hang 1"]
    child.kill()  # one message at a time was in flight, so the six before "hang" are settled
    handle = handler()
    consumer = server.consume(handle, idle_ms=300)
    server.until(lambda: consumer.stats.acknowledged == 4)
    assert sorted(handle.values) == [b"6", b"7", b"8", b"hang"]


@pytest.mark.parametrize(
    "point",
    [
        "before-schedule",
        "after-schedule",
        "after-bury",
        "after-raise_to",
        "before-ack",
        "after-ack",
        "before-forward",
        "after-forward",
    ],
)
def test_a_killed_service_loses_and_doubles_nothing(
    server: Bench, policy: Policy, start: Callable[..., Child], point: str
) -> None:
    """A service is killed at one step of the intake, and another continues. Each record waits or is dead
    exactly once."""
    server.connection.broker.create_topic(dead_topic_of("billing"))
    retried = write((), RetryState(attempt=1, original_topic="orders"))
    last = write((), RetryState(attempt=2, original_topic="orders"))
    for n in range(40):
        server.publish(b"%d" % n, topic=RETRY, headers=last if n % 2 else retried)
    child = start(SERVICE, server.url, point, 3_600_000)
    assert child.line() == b"reached"
    assert child.process.wait(60) == -signal.SIGKILL
    server.serve(policy(max_attempts=2, base_ms=3_600_000), batch=10, idle_ms=300)
    server.until(lambda: len(server.records(dead_topic_of("billing"))) >= 20 and server.waiting() >= 20)
    time.sleep(0.5)  # longer than `idle_ms`: a repeated record would have come by now
    due = server.connection.store.list_items("due", limit=100).found
    letters = [letter.message.value for letter in server.letters() if letter.message]
    assert len({found.id for found in due}) == len(due) == 20
    assert sorted(letters, key=int) == [b"%d" % n for n in range(1, 40, 2)]
    assert sorted((record.value for record in server.records(dead_topic_of("billing"))), key=int) == sorted(
        letters, key=int
    )
    server.until(lambda: server.unsettled(RETRY) == [])


@pytest.mark.parametrize("point", ["after-schedule", "before-ack", "after-ack"])
def test_a_record_is_taken_in_once_though_its_message_has_gone_out_already(
    server: Bench, handler: Handlers, policy: Policy, start: Callable[..., Child], point: str
) -> None:
    """A service is killed after storing retry records and before settling them, and the stored messages become due.
    Each message comes back exactly once."""
    server.connection.broker.create_topic(dead_topic_of("billing"))
    for n in range(30):
        server.publish(b"%d" % n, topic=RETRY, headers=write((), RetryState(attempt=1, original_topic="orders")))
    handle = handler()
    consumer = server.consume(handle)
    child = start(SERVICE, server.url, point, 1)
    assert child.line() == b"reached"
    assert child.process.wait(60) == -signal.SIGKILL
    time.sleep(0.4)  # longer than the delay and `idle_ms`
    server.serve(policy(base_ms=1), idle_ms=300)
    server.until(lambda: consumer.stats.acknowledged >= 30)
    time.sleep(0.5)  # a repeated message would have come by now
    server.quiet(consumer)
    assert sorted(handle.values, key=int) == [b"%d" % n for n in range(30)]
    server.until(lambda: server.unsettled(RETRY) == [])


def test_a_killed_dispatcher_loses_nothing_and_the_script_doubles_nothing(
    server: Bench, handler: Handlers, policy: Policy, start: Callable[..., Child]
) -> None:
    """Services are killed while they send due messages. One script on the server sends and settles, so each message
    comes back exactly once."""
    server.connection.broker.create_topic(dead_topic_of("billing"))
    handle = handler()
    consumer = server.consume(handle, concurrency=16)
    for n in range(400):
        server.connection.publish("orders", b"%d" % n, delay=0.005 * n)
    kills = 0
    while kills < 4:
        child = start(SERVICE, server.url, "never", 150)
        before = len(handle.calls)
        server.until(lambda b=before: len(handle.calls) > b or len(handle.calls) == 400)  # type: ignore[misc]  # the loop's
        child.kill()
        kills += 1
    server.serve(policy(base_ms=150), idle_ms=300)
    server.until(lambda: len(handle.calls) >= 400)
    server.quiet(consumer)
    assert sorted(handle.values, key=int) == [b"%d" % n for n in range(400)]
