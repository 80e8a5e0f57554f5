"""The runner of an operation dies before or after one of its calls on the store. This is tried for each call. The
counts stay exact.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pytest

from retry_topic import Connection, DeadLetterFilter, DeadLetters
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.management.dead_letter_operations import DELETE, REPLAY, DeleteDeadLetters, ReplayDeadLetters
from retry_topic.message import Message
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.headers import RetryState, read, write
from wheel_sched.errors import NotDone
from wheel_sched.management.operations import DurableOperation, OperationBook, OperationRunner, stepping
from wheel_sched.store import DelayStore, Item, open_store

pytestmark = pytest.mark.slow

LETTERS = 14
GROUP = {"topic": "orders", "group": "aaa", "max_replays": "1"}


class Died(BaseException):
    """Raised in place of a call's answer: the process has died."""


class World:
    """A store in memory with dead letters, and a runner that can die at a chosen call."""

    def __init__(self, kind: str) -> None:
        self.ms = 1_700_000_000_000
        self.store: DelayStore = open_store("memory:", shards=3, test_clock=lambda: self.ms)
        self.connection = Connection(self.store, MemoryBroker())
        self.book = OperationBook(self.store)
        self.calls, self.dies_at, self.after = 0, 0, False
        self._execute = self.store.backend.execute
        self.ids = [f"m{number}" for number in range(LETTERS)]
        letters = []
        for name in self.ids:
            body = encode_body(Message("orders", b"1", None, write((), RetryState(id=name, original_topic="orders"))))
            letters.append((Item(name, self.ms - 1_000, body, "orders", ("fp:aaa",)), "max-attempts"))
        self.store.bury(letters)
        made = self.book.create(kind, GROUP, "ada")
        self.id = made.id
        runner = self.runner()
        while self.now().state == "counting":
            runner.run_once()
        self.book.confirm(self.id, "bob", self.now().version)

    def runner(self) -> OperationRunner:
        return OperationRunner(self.store, [ReplayDeadLetters(self.connection), DeleteDeadLetters(self.connection)])

    def now(self) -> DurableOperation:
        found = self.book.get(self.id)
        assert found is not None
        return found

    def die_at(self, call: int, after: bool) -> None:
        self.calls, self.dies_at, self.after = 0, call, after
        self.store.backend.execute = self._dying  # type: ignore[method-assign]  # a double of one method of one object

    def _dying(self, calls: Sequence[Any], now_ms: int | None = None) -> list[Any]:
        self.calls += 1
        if self.calls == self.dies_at and not self.after:
            raise Died
        answers = self._execute(calls, now_ms)
        if self.calls == self.dies_at:
            raise Died
        return answers

    def finish(self, runner: OperationRunner) -> DurableOperation:
        for _ in range(200):
            if not self.now().is_open:
                return self.now()
            runner.run_once()
            self.ms += 100
        raise AssertionError(self.now())

    def replays(self) -> dict[str, int]:
        found = self.store.list_items("due", limit=500).found
        return {one.id: read(decode_body(one.body).headers).replays for one in found}


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "BATCH", 6)


def calls_of(kind: str) -> int:
    """How many calls a runner makes from start to end if it does not die."""
    world = World(kind)
    world.die_at(0, False)
    world.finish(world.runner())
    return world.calls


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("kind", [REPLAY, DELETE])
@pytest.mark.parametrize("after", [False, True])
def test_a_death_at_any_call_costs_nothing(
    kind: str, after: bool, forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each letter is changed once and counted as done, even if the store no longer remembers the call before the
    death."""
    for call in range(1, calls_of(kind) + 1):
        world = World(kind)
        world.die_at(call, after)
        with pytest.raises(Died):
            world.finish(world.runner())
        world.die_at(0, False)
        with monkeypatch.context() as patch:
            if forgotten:
                patch.setattr("wheel_sched.store.core.first_answers.FirstAnswers.recall", lambda *_: None)
            world.ms += 61_000 if forgotten else 21_000
            done = world.finish(world.runner())
        assert (done.state, done.done, dict(done.left)) == ("done", LETTERS, {}), call
        assert world.replays() == ({} if kind == DELETE else dict.fromkeys(world.ids, 1)), call
        assert world.store.counts().total("dead") == 0


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_the_counts_add_up(seed: int, remembered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners die while people pause, resume, cancel, replay and delete. No letter is replayed twice.

    The counts are exact while the store remembers its first answer to each token. Later, a letter that a person replays
    at the same moment may count as done.
    """
    if remembered:
        monkeypatch.setattr(stepping, "REMEMBERED_MS", 10**9)
    drawn = random.Random(seed)
    world = World(REPLAY)
    letters = DeadLetters(world.connection)
    by_hand, removed = 0, 0
    runner = world.runner()
    for _ in range(40):
        world.ms += drawn.choice((0, 10, 21_000, 61_000))
        draw = drawn.random()
        if draw < 0.4:
            world.die_at(drawn.randint(1, 12), drawn.random() < 0.5)
            try:
                for _ in range(3):
                    runner.run_once()
            except Died:
                runner = world.runner()
            world.die_at(0, False)
        elif draw < 0.6:
            runner.run_once()
        elif draw < 0.7:
            chosen = DeadLetterFilter(ids=frozenset(drawn.sample(world.ids, 2)))
            by_hand += letters.replay(chosen).replayed
        elif draw < 0.75:
            removed += letters.delete(DeadLetterFilter(ids=frozenset(drawn.sample(world.ids, 1))))
        else:
            change = drawn.choice((world.book.pause, world.book.resume, world.book.resume))
            if drawn.random() < 0.05:
                change = world.book.cancel
            with contextlib.suppress(NotDone):
                change(world.id)
    if world.now().state == "paused":
        world.book.resume(world.id)
    world.ms += 21_000
    done = world.finish(runner)
    assert done.handled == done.matched == LETTERS
    assert set(world.replays().values()) <= {1}
    assert len(world.replays()) + removed + world.store.counts().total("dead") == LETTERS
    if remembered:
        assert done.done + by_hand == len(world.replays())
    else:
        assert done.done <= len(world.replays()) <= done.done + by_hand
