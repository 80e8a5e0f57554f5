"""Many threads use the same operations, with thread switches as often as possible. Each operation ends once."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from wheel_sched.purgatory import Completion, DelayedOperation, Purgatory
from wheel_sched.purgatory.watchers import WatcherLists
from wheel_sched.timers import SystemTimer

THREADS = 4


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


class Operation(DelayedOperation):
    """An operation that is complete when `ready` is set. It records its ends, and counts tries that overlap in time."""

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.ready = False
        self.trying = 0
        self.overlaps = 0
        self.ends: list[str] = []

    def try_complete(self) -> bool:
        self.trying += 1
        self.overlaps += self.trying != 1
        ready = self.ready
        self.trying -= 1
        return ready

    def on_complete(self) -> None:
        self.ends.append("complete")

    def on_expiration(self) -> None:
        self.ends.append("expiration")


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        ("reaper", 150),
        pytest.param("reaper", 2_000, marks=pytest.mark.slow),
        pytest.param("system timer", 1_000, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(180)
def test_every_operation_ends_exactly_once(run_all: Any, kind: str, rounds: int) -> None:
    """A check, a forced completion and the timer race for each operation. It ends once, and no list has it
    afterwards."""
    system = SystemTimer() if kind == "system timer" else None
    purgatory: Purgatory[int] = Purgatory(system)
    operations: list[Operation] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(rounds):
            operation = Operation(rng.choice([0, 1, 2, 5, 60_000]))
            operations.append(operation)
            purgatory.try_complete_else_watch(operation, rng.sample(range(6), 3))
            other = operations[rng.randrange(len(operations))]
            what = rng.random()
            if what < 0.6:
                other.ready = True
                purgatory.check_and_complete(rng.randrange(6))
            elif what < 0.8:
                other.force_complete()
            else:
                other.run()

    run_all([lambda seed=seed: work(seed) for seed in range(THREADS)])
    for operation in operations:
        operation.ready = True
    for key in range(6):
        purgatory.check_and_complete(key)
    for operation in operations:  # the timer may still be expiring the last operations
        assert operation.wait(60) is not None
    stats = purgatory.stats
    purgatory.close()
    if system is not None:
        system.close()
    for operation in operations:
        expired = operation.completion is Completion.EXPIRED
        assert operation.ends == (["complete", "expiration"] if expired else ["complete"])
        assert operation.overlaps == 0
    # the purgatory does not count operations that were forced before they were watched
    ended = Counter(
        operation.completion
        for operation in operations
        if operation.completion is not Completion.FORCED or hasattr(operation, "_keys")
    )
    assert ended[Completion.SATISFIED] == stats.satisfied
    assert ended[Completion.FORCED] == stats.forced
    assert ended[Completion.EXPIRED] == stats.expired
    assert (stats.watched, stats.keys, stats.delayed, stats.failed) == (0, 0, 0, 0)


@pytest.mark.parametrize("rounds", [500, pytest.param(6_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(180)
def test_no_completion_is_missed(run_all: Any, rounds: int) -> None:
    """One thread watches operations while another sets `ready` and checks. No operation waits until its timeout."""
    missed: list[Operation] = []
    with Purgatory[str]() as purgatory:
        for start in range(0, rounds, 100):
            operations = [Operation(600_000) for _ in range(100)]

            def watch(operations: list[Operation] = operations) -> None:
                for number, operation in enumerate(operations):
                    purgatory.try_complete_else_watch(operation, [f"a{number % 3}", f"own{number}"])

            def tell(operations: list[Operation] = operations) -> None:
                for number, operation in enumerate(operations):
                    operation.ready = True
                    purgatory.check_and_complete(f"own{number}")

            run_all([watch, tell])
            missed += [operation for operation in operations if not operation.is_completed]
            assert start >= 0
        assert missed == []
        assert purgatory.stats.keys == 0


@pytest.mark.parametrize("rounds", [2_000, pytest.param(40_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(180)
def test_a_list_that_is_dropped_while_it_is_entered_loses_nobody(run_all: Any, rounds: int) -> None:
    """Four threads enter and leave the list of one key all the time, so the list is often dropped. Each thread
    always finds its operation in it."""
    lists = WatcherLists()

    def work() -> None:
        operation = Operation(0)
        for _ in range(rounds):
            entered = lists.enter(("key", "key2"), operation)
            assert operation in lists.watching("key")
            assert operation in lists.watching("key2")
            lists.leave(("key", "key2"), operation, entered)

    run_all([work] * THREADS)
    assert (len(lists), lists.watched()) == (0, 0)


def test_a_close_among_watchers_leaves_nobody_waiting(run_all: Any) -> None:
    """A purgatory closes while two threads watch operations. A watched operation is forced. A later watch raises an
    error."""
    for _ in range(20):
        purgatory: Purgatory[str] = Purgatory()
        operations: list[Operation] = []
        refused: list[Operation] = []
        begun = threading.Event()

        def watch(
            purgatory: Purgatory[str] = purgatory,
            operations: list[Operation] = operations,
            refused: list[Operation] = refused,
            begun: threading.Event = begun,
        ) -> None:
            for _ in range(30):
                operation = Operation(600_000)
                operations.append(operation)
                try:
                    purgatory.try_complete_else_watch(operation, ["a", "b"])
                except ValueError:
                    refused.append(operation)
                begun.set()

        def close(purgatory: Purgatory[str] = purgatory, begun: threading.Event = begun) -> None:
            begun.wait(30)
            purgatory.close()

        run_all([watch, watch, close])
        for operation in operations:
            assert operation.is_completed is (operation not in refused)
        assert purgatory.watched() == 0
