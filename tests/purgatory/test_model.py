"""A state machine: operations under several keys, with watches, checks, forces, cancels and time in any order.

In the model an operation waits with a deadline, has ended once, or was cancelled. After every step the purgatory's
lists, gauges and counters must agree with the model.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from wheel_sched.purgatory import Completion, DelayedOperation, Purgatory
from wheel_sched.testing import VirtualClock
from wheel_sched.wheel import TimingWheel

KEYS = ["a", "b", "c", "d", 7, ("t", 1)]


class Operation(DelayedOperation):
    """An operation that a try completes if it is `ripe`. It counts its completions and its expirations. When it is
    completed, also by its timer, it checks the key `chain`, if given."""

    def __init__(self, timeout_ms: int, machine: Machine, chain: Any = None) -> None:
        super().__init__(timeout_ms)
        self.machine = machine
        self.chain = chain
        self.watched_keys: frozenset[Any] = frozenset()
        self.deadline_ms = 0
        self.ripe = False
        self.completions = self.expirations = 0

    def try_complete(self) -> bool:
        assert self.completions == 0
        return self.ripe and self.force_complete()

    def on_complete(self) -> None:
        self.completions += 1
        self.machine.waiting.pop(self, None)
        if self.chain is not None:
            self.machine.purgatory.check_and_complete(self.chain)

    def on_expiration(self) -> None:
        self.expirations += 1
        assert self.machine.clock.monotonic_ms() >= self.deadline_ms


class Machine(RuleBasedStateMachine):
    """Runs random operations on a purgatory and on a model of it, and compares the two."""

    operations = Bundle("operations")

    @initialize()
    def begin(self) -> None:
        self.clock = VirtualClock()
        self.wheel: TimingWheel[Any] = TimingWheel(0)
        self.purgatory: Purgatory[Any] = Purgatory(self, clock=self.clock, on_error=self.failed)
        self.waiting: dict[Operation, None] = {}
        self.all: list[Operation] = []
        self.cancelled: list[Operation] = []

    def failed(self, operation: DelayedOperation, error: Exception) -> None:
        raise AssertionError(f"{operation!r} raised") from error

    def schedule(self, delay_ms: int, callback: Any) -> Any:
        return self.wheel.schedule(callback, self.clock.monotonic_ms() + delay_ms)

    @rule(
        target=operations,
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        timeout_ms=st.integers(-3, 60),
        chain=st.none() | st.sampled_from(KEYS),
        ripe=st.booleans(),
    )
    def watch(self, keys: list[Any], timeout_ms: int, chain: Any, ripe: bool) -> Operation:
        operation = Operation(timeout_ms, self, chain)
        operation.ripe = ripe
        operation.deadline_ms = self.clock.monotonic_ms() + timeout_ms
        operation.watched_keys = frozenset(keys)
        self.all.append(operation)
        assert self.purgatory.try_complete_else_watch(operation, keys) is ripe
        if not ripe:
            self.waiting[operation] = None
        return operation

    @rule(operation=operations)
    def ripen(self, operation: Operation) -> None:
        """Set `ripe` without a check, so that the purgatory does not notice it yet."""
        operation.ripe = True

    @rule(key=st.sampled_from(KEYS))
    def check(self, key: Any) -> None:
        due = [each for each in self.waiting if key in each.watched_keys and each.ripe]
        assert self.purgatory.check_and_complete(key) <= len(due)
        assert all(each.completion is Completion.SATISFIED for each in due)

    @rule(operation=operations)
    def force(self, operation: Operation) -> None:
        open_before = operation.completion is None
        assert operation.force_complete() is open_before
        if open_before:
            assert operation.completion is Completion.FORCED

    @rule(key=st.sampled_from(KEYS))
    def cancel(self, key: Any) -> None:
        expected = [each for each in self.waiting if key in each.watched_keys]
        assert self.purgatory.cancel_for_key(key) == expected
        for operation in expected:
            del self.waiting[operation]
        self.cancelled += expected

    @rule(ms=st.integers(0, 40))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        for entry in self.wheel.advance(self.clock.monotonic_ms()):
            if entry.task is not None:
                entry.task()
        now_ms = self.clock.monotonic_ms()
        assert all(operation.deadline_ms > now_ms for operation in self.waiting)

    @invariant()
    def lists_and_gauges_are_exact(self) -> None:
        if not hasattr(self, "purgatory"):
            return
        assert self.purgatory.delayed == len(self.waiting) == len(self.wheel)
        assert self.purgatory.watched() == sum(len(operation.watched_keys) for operation in self.waiting)
        assert self.purgatory.stats.keys == len({key for each in self.waiting for key in each.watched_keys})
        for key in KEYS:
            expected = sum(key in operation.watched_keys for operation in self.waiting)
            assert self.purgatory.watched(key) == expected

    @invariant()
    def each_ended_once_or_waits(self) -> None:
        if not hasattr(self, "purgatory"):
            return
        stats = self.purgatory.stats
        ended = Counter(each.completion for each in self.all if each not in self.cancelled)
        assert ended[Completion.SATISFIED] == stats.satisfied
        assert ended[Completion.FORCED] == stats.forced
        assert ended[Completion.EXPIRED] == stats.expired == sum(stats.lateness_counts)
        assert stats.cancelled == len(self.cancelled)
        for operation in self.all:
            assert operation.completions == (operation.completion is not None)
            assert operation.expirations == (operation.completion is Completion.EXPIRED)
            assert (operation in self.waiting) == (operation.completion is None and operation not in self.cancelled)


TestPurgatoryModel = Machine.TestCase
# fewer and longer histories than the profile's: interesting states need several operations
TestPurgatoryModel.settings = settings(
    max_examples=settings.default.max_examples // 3, stateful_step_count=40, deadline=None
)
