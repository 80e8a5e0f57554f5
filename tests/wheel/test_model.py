"""Compares the wheel with a sorted list: for any calls, ticks and wheel sizes both give the same answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from wheel_sched.wheel import CORES, EntryState, TimerTaskEntry, TimingWheel

# Near, around the edges of small blocks, far, and before now.
DELAYS_MS = st.one_of(
    st.integers(-20, 40),
    st.integers(0, 9).flatmap(lambda power: st.integers(4**power - 3, 4**power + 3)),
    st.integers(0, 10**7),
    st.just(10**18),
)


@dataclass(eq=False)
class Expected:
    """An entry of the model. `tick` is the tick at which it must be handed out, `order` its rank within the tick."""

    entry: TimerTaskEntry[int]
    wheel: TimingWheel[int]
    deadline_ms: int
    tick: int
    order: int
    touched: bool = False
    state: EntryState = EntryState.PENDING


class WheelAgainstSortedList(RuleBasedStateMachine):
    """A state machine that makes the same calls on a wheel and on a model.

    Tasks must be handed out once, in order and never early. `len` and `next_expiry` must be exact.
    """

    core: type[TimingWheel[Any]]
    entries = Bundle("entries")

    @initialize(
        shape=st.sampled_from([(1, 2), (1, 4), (1, 16), (3, 4), (7, 8), (10, 2), (1, 4096)]),
        now_ms=st.one_of(st.just(0), st.integers(0, 10**6)),
    )
    def start(self, shape: tuple[int, int], now_ms: int) -> None:
        self.tick_ms, self.wheel_size = shape
        self.wheel: TimingWheel[int] = self.core(now_ms, tick_ms=self.tick_ms, wheel_size=self.wheel_size)
        self.clock = now_ms // self.tick_ms
        self.now_ms = now_ms
        self.waiting: list[Expected] = []
        self.orders = 0

    def order(self) -> int:
        self.orders += 1
        return self.orders

    def tick_of(self, deadline_ms: int) -> int:
        return max(-(-deadline_ms // self.tick_ms), self.clock)

    @rule(target=entries, delays_ms=st.lists(DELAYS_MS, min_size=1, max_size=5))
    def schedule(self, delays_ms: list[int]) -> Any:
        added = []
        for delay_ms in delays_ms:
            deadline_ms = self.now_ms + delay_ms
            order = self.order()
            entry = self.wheel.schedule(order, deadline_ms)
            added.append(Expected(entry, self.wheel, deadline_ms, self.tick_of(deadline_ms), order))
        self.waiting += added
        return multiple(*added)

    @rule(item=entries)
    def cancel(self, item: Expected) -> None:
        waits = item.state is EntryState.PENDING
        if waits:
            item.state = EntryState.CANCELLED
            self.waiting.remove(item)
        assert item.entry.cancel() is item.state
        assert (item.entry.task is None) == (item.state is EntryState.CANCELLED)

    @rule(item=entries)
    def finish(self, item: Expected) -> None:
        item.entry.finish()
        if item.state is EntryState.RUNNING:
            item.state = EntryState.FIRED

    @rule(item=entries, delay_ms=DELAYS_MS)
    def reschedule(self, item: Expected, delay_ms: int) -> None:
        if item.wheel is not self.wheel:
            return  # the entry was handed out before a restore, and belongs to the old wheel
        assert item.entry.reschedule(self.now_ms + delay_ms) is (item.state is not EntryState.CANCELLED)
        if item.state is not EntryState.CANCELLED:
            self.arm(item, self.now_ms + delay_ms)

    def arm(self, item: Expected, deadline_ms: int) -> None:
        if item.state is not EntryState.PENDING:
            self.waiting.append(item)
        item.state, item.touched = EntryState.PENDING, False
        item.deadline_ms, item.tick, item.order = deadline_ms, self.tick_of(deadline_ms), self.order()

    @rule(item=entries, delay_ms=DELAYS_MS)
    def touch(self, item: Expected, delay_ms: int) -> None:
        deadline_ms = self.now_ms + delay_ms
        assert item.entry.touch(deadline_ms) is (item.state is EntryState.PENDING)
        if item.state is not EntryState.PENDING:
            return
        if deadline_ms < item.deadline_ms:
            self.arm(item, deadline_ms)
        else:
            tick = max(item.tick, self.tick_of(deadline_ms))
            item.touched = item.touched or tick != item.tick  # a touch within the same tick does not move the entry
            item.deadline_ms, item.tick = deadline_ms, tick

    @rule(step_ms=DELAYS_MS, limit=st.one_of(st.none(), st.integers(1, 4)))
    def advance(self, step_ms: int, limit: int | None) -> None:
        self.now_ms += min(step_ms, 10**7)  # the greatest delay, 10**18, is only for deadlines
        self.hand_out(limit)

    @rule(limit=st.one_of(st.none(), st.integers(1, 4)))
    def advance_to_next_expiry(self, limit: int | None) -> None:
        next_ms = self.wheel.next_expiry()
        if next_ms is not None:
            self.now_ms = max(self.now_ms, min(next_ms, self.now_ms + 10**9))
            assert self.hand_out(limit) or next_ms > self.now_ms

    @rule(limit=st.integers(1, 2))
    def resume(self, limit: int) -> None:
        self.hand_out(limit)

    def hand_out(self, limit: int | None) -> int:
        handed_out = self.wheel.advance(self.now_ms, limit)
        target = max(self.clock, self.now_ms // self.tick_ms)
        due = sorted((item for item in self.waiting if item.tick <= target), key=lambda item: (item.tick, item.order))
        by_entry = {item.entry: item for item in due}
        got = [by_entry[entry] for entry in handed_out]  # a KeyError: handed out early, twice, or although cancelled
        assert len(set(handed_out)) == len(handed_out)
        assert [item.tick for item in got] == [item.tick for item in due][:limit]
        for tick in {item.tick for item in got}:
            steady = [item for item in due if item.tick == tick and not item.touched]
            ours = [item for item in got if item.tick == tick and not item.touched]
            assert ours == steady[: len(ours)]
        full = limit is not None and len(got) == limit
        self.clock = got[-1].tick if full else target
        for item in got:
            assert item.entry.state is EntryState.RUNNING
            item.state = EntryState.RUNNING
            self.waiting.remove(item)
        return len(got)

    @rule()
    def snapshot_and_restore(self) -> None:
        old = self.wheel
        snapshot = old.snapshot()
        self.wheel = self.core(self.clock * self.tick_ms, tick_ms=self.tick_ms, wheel_size=self.wheel_size)
        restored = self.wheel.restore(snapshot)
        assert len(restored) == len(self.waiting)
        by_order = {item.entry.task: item for item in self.waiting}
        for entry in restored:
            item = by_order[entry.task]
            item.entry.cancel()  # the old wheel is given up
            item.entry, item.wheel, item.order, item.touched = entry, self.wheel, self.order(), False
            assert entry.deadline_ms == item.deadline_ms
        assert len(old) == 0

    @rule()
    def clear(self) -> None:
        if len(self.waiting) < 20:
            return  # otherwise hardly any history would have many entries
        assert len(self.wheel.clear()) == len(self.waiting)
        for item in self.waiting:
            item.state = EntryState.CANCELLED
        self.waiting.clear()

    @rule()
    def look_at_the_next_expiry(self) -> None:
        # A rule and not an invariant: it moves postponed entries, and histories without it count as well.
        assert self.wheel.next_expiry() == (
            min(item.tick for item in self.waiting) * self.tick_ms if self.waiting else None
        )

    @invariant()
    def counts_and_order_agree(self) -> None:
        if not hasattr(self, "wheel"):
            return
        counters = self.wheel.counters
        assert len(self.wheel) == counters.pending == sum(counters.levels) == len(self.waiting)
        assert self.wheel.now_ms == self.clock * self.tick_ms
        snapshot = self.wheel.snapshot()
        by_task = {item.entry.task: item for item in self.waiting}
        listed = [by_task[task] for _, task in snapshot]
        assert [deadline_ms for deadline_ms, _ in snapshot] == [item.deadline_ms for item in listed]
        steady = [(item.tick, item.order) for item in listed if not item.touched]
        assert steady == sorted(steady)
        assert [item.tick for item in listed] == sorted(item.tick for item in listed)


@pytest.mark.parametrize("histories", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(CORES))
@pytest.mark.timeout(300)
def test_every_history_agrees_with_a_sorted_list(name: str, histories: int) -> None:
    """Random histories of up to 60 calls give the same answers on the wheel and on the model.

    Hypothesis shrinks a history that differs to the shortest one.
    """
    machine = type("Machine", (WheelAgainstSortedList,), {"core": CORES[name]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=histories,
            stateful_step_count=60,
            deadline=None,
            derandomize=False,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
