"""Fixtures: a dispatcher, its store and its receiver in one virtual time, which moves only when a test moves it.

The memory store runs on a test clock, so a virtual day takes only the time of its calls. The receiver decides whether
an item is early or late: it records the store's time at which each item arrived.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from wheel_sched.dispatcher import Answer, Batch, ClaimSource, Dispatcher, DispatcherConfig, PublisherTraits
from wheel_sched.store.core.call import Call, CompletedCalls
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Item, Marker, State
from wheel_sched.store.core.settle import Done
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.testing import VirtualClock

START_MS = 1_000_000_000
PATIENCE_S = 40.0  # real seconds for which a test waits for other threads


class Received(NamedTuple):
    """A message that the receiver got, and the store's time at which the receiver got it."""

    id: str
    due_ms: int
    at_ms: int


class Receiver:
    """A publisher that records its batches and gives the answers that the test has set."""

    traits = PublisherTraits()

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.received: list[Received] = []
        self.batches: list[Batch] = []
        self.refused: list[tuple[str, str]] = []
        self.answer: Callable[[Claimed], Answer | None] = lambda item: Done(item.id)
        self.refusal: Callable[[Claimed], Answer] = lambda item: Done(item.id)
        self.before: Callable[[Batch], None] = lambda batch: None

    def publish(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.before(batch)
        for place, item in enumerate(batch.items):
            self.received.append(Received(item.id, item.due_ms, self._now_ms()))
            batch.answers[place] = self.answer(item)

    def refuse(self, item: Claimed, reason: str) -> Answer:
        self.refused.append((item.id, reason))
        return self.refusal(item)

    @property
    def ids(self) -> list[str]:
        return [item.id for item in self.received]


class World:
    """Clock, store, receiver and dispatchers of one test."""

    def __init__(self, shards: int = 1) -> None:
        self.clock = VirtualClock(START_MS)
        self.step_ms = 0  # how far the store's clock was stepped against monotonic time
        self.backend = MemoryBackend(shards, clock="test")
        self.store = self.handle()
        self.receiver = Receiver(lambda: self.now_ms)
        self._dispatchers: list[Dispatcher] = []

    @property
    def now_ms(self) -> int:
        """The store's time."""
        return self.clock.monotonic_ms() + self.step_ms

    def handle(self) -> DelayStore:
        """Open another handle on the same store, as another process would."""
        return DelayStore(self.backend, shards=len(self.backend.shards), test_clock=lambda: self.now_ms).open()

    def put(self, *ids: str, in_ms: int | None = 0, topic: str = "") -> None:
        due_ms = None if in_ms is None else self.now_ms + in_ms
        self.handle().schedule([Item(i, due_ms, i.encode(), topic) for i in ids])

    def state(self, item_id: str) -> State | None:
        (found,) = self.store.get([item_id])
        return found.state if found else None

    def dispatcher(
        self,
        *,
        store: DelayStore | None = None,
        publisher: Any = None,
        claims: ClaimSource | None = None,
        on_settled: Any = None,
        start: bool = True,
        **settings: int,
    ) -> Dispatcher:
        """Make a dispatcher. With `start`, start it and wait until it has no work. It is stopped after the test."""
        dispatcher = Dispatcher(
            store or self.store,
            publisher or self.receiver,
            claims=claims,
            config=DispatcherConfig(**settings),
            clock=self.clock,
            on_settled=on_settled,
        )
        self._dispatchers.append(dispatcher)
        if start:
            dispatcher.start()
            self.calm()
        return dispatcher

    def calm(self) -> None:
        """Wait until no dispatcher has work left at this time; publishers may still be busy."""
        for dispatcher in self._dispatchers:
            for _ in range(4):  # one step for each post; the last handles the replies of the first
                passed = threading.Event()
                dispatcher.loop.post(passed.set)
                while not dispatcher.loop.finished and not passed.wait(0.01):
                    pass

    def advance(self, ms: int) -> None:
        """Move the time by `ms`, and wait until no dispatcher has work left."""
        self.clock.advance(ms)
        self.calm()

    def tick(self) -> None:
        """Move the time by a millisecond, and wait until all released messages are received and settled."""
        self.advance(1)
        self.until(lambda: all(dispatcher.stats.in_flight == 0 for dispatcher in self._dispatchers), "in flight")

    def deafen(self) -> None:
        """From now on no listener receives a marker, which is the store's entry that wakes dispatchers.

        The listeners get no error either, as if their connections had died silently.
        """

        def hear_nothing(waiter: Any, marks: dict[int, bytes], timeout_ms: int) -> dict[int, Marker]:
            with waiter._condition:
                waiter._condition.wait_for(lambda: waiter.closed)
            return {}

        self.backend.wait_for_mark = hear_nothing  # type: ignore[method-assign]  # a double of one method

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait, in real time, until `condition` holds. Another thread makes it true. Virtual time does not move."""
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until_s, f"waited in vain: {what or self.receiver.received!r}"
            time.sleep(0.0005)  # another thread makes it true, without a signal

    def received(self, count: int) -> list[Received]:
        """Wait until `count` items have reached the receiver and are settled. Fails if more arrive."""
        self.until(lambda: len(self.receiver.received) >= count)
        self.until(lambda: all(dispatcher.stats.in_flight == 0 for dispatcher in self._dispatchers), "in flight")
        self.calm()
        assert len(self.receiver.received) == count
        return self.receiver.received

    def close(self) -> None:
        for dispatcher in self._dispatchers:
            dispatcher.stop(timeout_s=0)
        self.store.close()


class FailingCalls:
    """Wraps the calls of a store: counts them by script, and raises the errors that the test sets for a script."""

    def __init__(self, store: DelayStore) -> None:
        self._execute = store.execute
        self.calls: list[Call[Any]] = []
        self.failures: dict[str, list[Exception]] = {}
        store.execute = self.execute  # type: ignore[method-assign]  # a double of two methods of one object
        store.begin = lambda calls: CompletedCalls(self.execute(calls))  # type: ignore[method-assign]

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        self.calls.extend(calls)
        answers: list[Any] = []
        for call in calls:
            planned = self.failures.get(call.operation.script)
            answers += [planned.pop(0)] if planned else self._execute([call])
        return answers

    def count(self, script: str) -> int:
        return sum(call.operation.script == script for call in self.calls)


@pytest.fixture
def world() -> Iterator[World]:
    """A world with one shard."""
    world = World()
    yield world
    world.close()


@pytest.fixture
def wide() -> Iterator[World]:
    """A world with eight shards."""
    world = World(shards=8)
    yield world
    world.close()


@pytest.fixture
def watch() -> Callable[[DelayStore], FailingCalls]:
    """Return a function that puts a `FailingCalls` around the calls of a store handle."""
    return FailingCalls


@pytest.fixture
def threads() -> Callable[[], list[threading.Thread]]:
    """Return a function that lists the running dispatcher threads which this test has started.

    It leaves out threads of earlier tests that are still ending.
    """
    earlier = set(threading.enumerate())

    def started() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t not in earlier and t.name.startswith("wheel-sched")]

    return started
