"""The state that a wheel shows: counters, snapshot, restore and clear."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

from wheel_sched.wheel import CORE, CORES, EntryState, TimingWheel

MakeWheel = Callable[..., TimingWheel[Any]]
Core = type[TimingWheel[Any]]


def test_the_core_in_use_is_one_of_those_there_are() -> None:
    """`CORE` names the core whose class is exported."""
    assert CORES[CORE] is TimingWheel


def test_emptied_slots_cause_no_wake_up(make_wheel: MakeWheel) -> None:
    """After 1,000 of 1,001 entries were cancelled, only one wake-up is left. Kafka's timer still wakes 36 times."""
    wheel = make_wheel()
    entries = [wheel.schedule(number, number * 37) for number in range(1000)]
    keeper = wheel.schedule("keeper", 10**8)
    for entry in entries:
        entry.cancel()
    wakeups = []
    while (next_ms := wheel.next_expiry()) is not None:
        wakeups.append(next_ms)
        assert wheel.advance(next_ms) == [keeper]
    assert len(wakeups) == 1
    assert wheel.counters.empty_wakeups == 0


def test_cancelled_timers_leave_a_bounded_trace(core: Core) -> None:
    """However many timers are cancelled, the wheel's memory is below a bound."""
    wheel = core(wheel_size=16)
    wheel.schedule("stays", 10**6)
    least, most = 10**9, 0
    tracemalloc.start()
    try:
        for round_ms in range(0, 20_000, 10):
            wheel.advance(round_ms)
            for delay_ms in (7, 100, 3000):
                wheel.schedule("request", round_ms + delay_ms).cancel()
            size = tracemalloc.get_traced_memory()[0]
            least, most = min(size, least), max(size, most)
    finally:
        tracemalloc.stop()
    # 6000 timers that each left a trace would be 500 KB.
    assert most - least < 50_000


def test_driven_by_next_expiry_every_wake_up_is_productive(make_wheel: MakeWheel) -> None:
    """If `advance` is called only at `next_expiry`, each call hands out an entry, even if entries were postponed."""
    wheel = make_wheel()
    rng = random.Random(3)
    entries = [wheel.schedule(number, rng.randrange(10**6)) for number in range(500)]
    for entry in entries[::3]:
        entry.touch(entry.deadline_ms + rng.randrange(10**6))
    count = 0
    while (next_ms := wheel.next_expiry()) is not None:
        count += len(wheel.advance(next_ms))
    assert (count, wheel.counters.empty_wakeups) == (500, 0)


def test_asking_for_the_next_expiry_changes_nothing(make_wheel: MakeWheel) -> None:
    """Two wheels with equal entries hand them out equally, although `next_expiry` is called on only one of them."""
    rng = random.Random(8)
    asked, silent = make_wheel(), make_wheel()
    for step in range(400):
        deadline_ms = step * 50 + rng.randrange(10 ** rng.randrange(1, 6))
        for wheel in (asked, silent):
            wheel.schedule(step, deadline_ms)
        asked.next_expiry()
        first, second = ([e.task for e in wheel.advance(step * 50)] for wheel in (asked, silent))
        assert first == second
    assert asked.snapshot() == silent.snapshot()


def test_counters_tell_what_was_done(core: Core) -> None:
    """The counters show pending entries per level, moves between levels, and productive and empty wake-ups."""
    wheel = core(wheel_size=16)
    wheel.schedule("near", 5)
    wheel.schedule("mid", 100)
    wheel.schedule("far", 1000)
    assert (wheel.counters.pending, wheel.counters.levels) == (3, (1, 1, 1))
    wheel.advance(4)
    wheel.advance(5)
    wheel.advance(1000)
    counters = wheel.counters
    assert (counters.pending, counters.levels) == (0, (0,))
    assert (counters.productive_wakeups, counters.empty_wakeups) == (2, 1)
    # "mid" moves once. "far" moves twice in the compiled core, by way of the middle level, and once in the pure core.
    assert counters.cascades == (2 if core.__module__.endswith("pure") else 3)


def test_a_snapshot_lists_what_would_be_handed_out_in_that_order(make_wheel: MakeWheel) -> None:
    """A snapshot lists the entries of all levels in the order of their hand-out, with their deadlines, and changes
    nothing."""
    wheel = make_wheel(1000)
    rng = random.Random(4)
    for number in range(1000):
        wheel.schedule(number, rng.randrange(10 ** rng.randrange(2, 8)))
    snapshot = wheel.snapshot()
    assert snapshot == wheel.snapshot()
    assert [(entry.deadline_ms, entry.task) for entry in wheel.advance(10**8)] == snapshot


def test_a_snapshot_knows_postponed_deadlines(make_wheel: MakeWheel) -> None:
    """A snapshot has the new deadline of a touched entry, although the entry is still in its old slot."""
    wheel = make_wheel()
    wheel.schedule("a", 100).touch(9000)
    wheel.schedule("b", 5000)
    assert wheel.snapshot() == [(5000, "b"), (9000, "a")]


def test_restore_continues_where_the_snapshot_was_taken(make_wheel: MakeWheel) -> None:
    """A new wheel at the same time gets a snapshot's deadlines in the same order. `restore` returns the new entries."""
    old = make_wheel(500)
    for number in range(300):
        old.schedule(number, (number * 7919) % 40_000)
    old.advance(10_000)
    new = make_wheel(10_000)
    entries = new.restore(old.snapshot())
    assert new.snapshot() == old.snapshot()
    assert entries[0].cancel() is EntryState.CANCELLED
    assert [e.task for e in new.advance(50_000)] == [e.task for e in old.advance(50_000)][1:]


def test_clear_answers_what_was_pending_and_cancels_it(make_wheel: MakeWheel) -> None:
    """`clear` returns the waiting tasks with their deadlines, as Netty's stop does. The entries are CANCELLED, and
    the wheel can still be used."""
    wheel = make_wheel()
    entries = [wheel.schedule(number, 10**number) for number in range(8)]
    wheel.next_expiry()
    assert wheel.clear() == [(10**number, number) for number in range(8)]
    assert {entry.state for entry in entries} == {EntryState.CANCELLED}
    assert {entry.task for entry in entries} == {None}
    assert (len(wheel), wheel.next_expiry(), wheel.clear()) == (0, None, [])
    late = wheel.schedule("late", 10**6)
    assert wheel.next_expiry() == 10**6 + -(10**6) % wheel.tick_ms
    assert wheel.advance(10**9) == [late]


def test_the_repr_shows_state(core: Core) -> None:
    """`repr` shows the pending entries, the clock, the next expiry, the tick and the size."""
    wheel = core(5000, wheel_size=64)
    assert repr(wheel) == "<TimingWheel pending=0 now=5000ms next=none tick=1ms size=64 levels=1>"
    wheel.schedule("task", 8200)
    assert repr(wheel) == "<TimingWheel pending=1 now=5000ms next=+3200ms tick=1ms size=64 levels=3>"
