"""Fixtures for tests of the retry service: a connection in memory or to a real server, with consumers and services.

A test that uses `bench` runs twice: once in memory and once on a server. A test that uses `memory` or `server` runs
only there.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from retry_topic import Connection, Consumer, ConsumerConfig, DeadLetterInfo, DeadLetters, Message, RetryPolicy, connect
from retry_topic.intake.taken import Taken
from retry_topic.message import Headers
from retry_topic.message.headers import RetryState, read
from retry_topic.policy import Fixed, PolicySet, Rule
from retry_topic.service import RetryService, ServiceConfig

PATIENCE_S = 40.0  # real seconds until a test gives up on other threads


class Call(NamedTuple):
    """One message that a handler received, and the time by this machine's clock. The store uses the same clock."""

    message: Message
    at_ms: int

    @property
    def state(self) -> RetryState:
        return read(self.message.headers)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1 up."""
        return self.state.attempt + 1


class Handler:
    """A handler that records its messages and gives its `answers` one after another. The last answer is repeated.

    Args:
        answers: an exception to raise, a verdict to return, or a function of the message that does either.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers: Sequence[Any] = answers or (None,)
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> Any:
        with self._lock:
            place = len(self.calls)
            self.calls.append(Call(message, time.time_ns() // 1_000_000))
        answer = self.answers[min(place, len(self.answers) - 1)]
        if isinstance(answer, BaseException):
            raise answer
        return answer(message) if callable(answer) else answer

    @property
    def values(self) -> list[bytes]:
        return [call.message.value for call in self.calls]

    @property
    def attempts(self) -> list[int]:
        return [call.attempt for call in self.calls]


class Bench:
    """A connection with a consumer group. Everything that it starts is stopped at the end of the test."""

    group = "billing"
    topic = "orders"

    def __init__(self, connection: Connection, url: str | None = None) -> None:
        self.connection = connection
        self.url = url
        self.taken: list[Taken] = []
        self._stack = ExitStack()
        self._lookers = itertools.count()

    def consume(
        self, handler: Callable[[Message], Any], topics: str | Sequence[str] = topic, group: str = group, **config: Any
    ) -> Consumer:
        """Start a consumer."""
        consumer = Consumer(self.connection, topics, handler, group=group, config=ConsumerConfig(**config))
        return self._stack.enter_context(consumer)

    def serve(
        self,
        policies: RetryPolicy | PolicySet | None = None,
        group: str = group,
        connection: Connection | None = None,
        **config: Any,
    ) -> RetryService:
        """Start a retry service. The results of its intake are appended to `taken`."""
        service = RetryService(
            connection or self.connection, group, policies, config=ServiceConfig(**config), seen=self.taken.append
        )
        return self._stack.enter_context(service)

    def publish(self, *values: bytes, topic: str = topic, key: bytes | None = None, headers: Headers = ()) -> None:
        """Publish records to a topic. Create the topic if it is absent."""
        self.connection.broker.create_topic(topic)
        assert not any(self.connection.broker.publish([Message(topic, value, key, headers) for value in values]))

    def until(self, condition: Callable[[], bool], what: object = "") -> None:
        """Wait until `condition` is true. After 40 s, fail with `what`."""
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            state = what() if callable(what) else what
            assert time.monotonic() < until_s, f"waited in vain: {str(state or self.connection.store.counts())[:2000]}"
            time.sleep(0.002)  # polls until other threads have finished

    def quiet(self, *consumers: Consumer) -> None:
        """Wait until no item of the store is due or claimed, and no message of these consumers is in flight."""
        self.until(lambda: self.waiting() == 0 and all(consumer.stats.in_flight == 0 for consumer in consumers))

    def waiting(self) -> int:
        counts = self.connection.store.counts()
        return counts.total("due") + counts.total("leased")

    def letters(self) -> list[DeadLetterInfo]:
        return list(DeadLetters(self.connection).select())

    def dead(self, count: int = 1) -> list[DeadLetterInfo]:
        """Wait for exactly this number of dead letters."""
        self.until(lambda: self.connection.store.counts().total("dead") >= count)
        letters = self.letters()
        assert len(letters) == count, [(letter.id, letter.reason) for letter in letters]
        return letters

    def records(self, topic: str) -> list[Message]:
        """Read all records of a topic as a new group."""
        consumer = self.connection.broker.consumer([topic], f"looker-{next(self._lookers)}")
        found: list[Message] = []
        while deliveries := consumer.poll(500, 0):
            found += [delivery.message for delivery in deliveries]
            consumer.ack(deliveries)
        consumer.close()
        return found

    def unsettled(self, topic: str, group: str = group, idle_ms: int = 100) -> list[bytes]:
        """Wait longer than `idle_ms`, then return the messages that the group has received and not settled."""
        time.sleep(idle_ms / 1000 + 0.05)  # the broker delivers a record again only after this silence
        consumer = self.connection.broker.consumer([topic], group, idle_ms=idle_ms)
        deliveries = consumer.poll(500, 100)
        consumer.close()
        return [delivery.message.value for delivery in deliveries]

    def close(self) -> None:
        self._stack.close()
        self.connection.close()


@pytest.fixture
def quick_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let consumers and services check more often whether they must stop. Tests are faster and otherwise the same."""
    monkeypatch.setattr("retry_topic.consumer.consumer._POLL_MS", 10)
    monkeypatch.setattr("retry_topic.consumer.ordered.leased_topic._POLL_MS", 10)
    monkeypatch.setattr("retry_topic.consumer.ordered.leased_topic._STAND_BY_S", 0.02)
    monkeypatch.setattr("retry_topic.intake.worker._POLL_MS", 10)
    monkeypatch.setattr("retry_topic.consumer.reporting._EVERY_S", 0.11)
    monkeypatch.setattr("retry_topic.consumer.ordered.key_queues._FULL_S", 0.05)


@pytest.fixture
def memory(quick_poll: None) -> Iterator[Bench]:
    """A bench with store and broker in this process."""
    bench = Bench(connect("memory:"))
    yield bench
    bench.close()


@pytest.fixture
def server(quick_poll: None, redis_url: str) -> Iterator[Bench]:
    """A bench with store and broker on a real server."""
    bench = Bench(connect(redis_url), redis_url)
    yield bench
    bench.close()


@pytest.fixture
def bench_on(quick_poll: None) -> Iterator[Callable[[str], Bench]]:
    """Make a bench on the server with a given address."""
    with ExitStack() as made:

        def make(url: str) -> Bench:
            bench = Bench(connect(url), url)
            made.callback(bench.close)
            return bench

        yield make


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.real)])
def bench(request: pytest.FixtureRequest) -> Bench:
    """The bench: once in memory and once on a server."""
    found: Bench = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def handler() -> Callable[..., Handler]:
    """Make a `Handler`."""
    return Handler


@pytest.fixture
def policy() -> Callable[..., RetryPolicy]:
    """Make a policy with short fixed delays."""

    def made(max_attempts: int | None = 3, base_ms: int = 20, rules: tuple[Rule, ...] = (), **more: Any) -> RetryPolicy:
        return RetryPolicy(delay=Fixed(base_ms=base_ms), max_attempts=max_attempts, rules=rules, **more)

    return made
