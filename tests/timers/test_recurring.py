"""Recurring timers: interval, missed runs and end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel_sched.errors import ConfigError
from wheel_sched.testing import VirtualClock
from wheel_sched.timers import CatchUp, Every
from wheel_sched.wheel import EntryState


def test_a_fixed_rate_does_not_drift(virtual: Any) -> None:
    """With an interval of 7 ms, 200 runs end at 1,400 ms, even if a coarse tick delays each run."""
    timer, fired = virtual.timer(5, 16), []
    handle = timer.every(7, lambda: fired.append(virtual.now_ms()))
    virtual.pass_ms(1400)
    assert len(fired) == 200
    assert all(0 <= at - 7 * beat < 5 for beat, at in enumerate(fired, 1))
    assert (handle.state, len(timer)) == (EntryState.PENDING, 1)


def test_the_first_run_may_be_at_another_time(virtual: Any) -> None:
    """With `first_ms=0` the first run is at once. The following runs keep the interval."""
    timer, fired = virtual.timer(), []
    timer.every(10, lambda: fired.append(virtual.now_ms()), first_ms=0)
    virtual.pass_ms(25)
    assert fired == [0, 10, 20]


def slow_runs(facade: Any, slow_ms: int, **options: Any) -> list[int]:
    """Return the start times, up to 100 ms, of a timer with an interval of 10 ms whose first run takes `slow_ms`."""
    timer, began = facade.timer(), []

    def run() -> None:
        began.append(facade.now_ms())
        if len(began) == 1:
            facade.clock.advance(slow_ms)

    handle = timer.every(10, run, **options)
    facade.pass_ms(10)
    facade.pass_ms(100 - facade.now_ms())
    handle.cancel()
    return began


@pytest.mark.parametrize(
    ("catch_up", "began"),
    [
        (CatchUp.ALL, [10, 45, 45, 45, 50, 60, 70, 80, 90, 100]),
        (CatchUp.ONCE, [10, 45, 50, 60, 70, 80, 90, 100]),
        (CatchUp.SKIP, [10, 50, 60, 70, 80, 90, 100]),
    ],
)
def test_missed_runs_are_made_up_for_as_told(virtual: Any, catch_up: CatchUp, began: list[int]) -> None:
    """If a run lasts from 10 ms to 45 ms, the runs at 20, 30 and 40 ms are missed. `catch_up` says which of them
    are made up."""
    assert slow_runs(virtual, 35, catch_up=catch_up) == began


def test_a_fixed_delay_counts_from_the_end_of_a_run(virtual: Any) -> None:
    """With `fixed="delay"`, the next run begins 10 ms after the end of the last one, however long that took."""
    assert slow_runs(virtual, 35, fixed="delay") == [10, 55, 65, 75, 85, 95]


def test_a_recurring_timer_ends_when_it_is_cancelled(virtual: Any) -> None:
    """A recurring timer that is cancelled between two runs, or during a run, does not run again."""
    timer, fired = virtual.timer(), []
    between = timer.every(10, fired.append, "between")
    within = timer.every(10, lambda: fired.append(within.cancel()))
    virtual.pass_ms(10)
    assert fired == ["between", EntryState.RUNNING]
    assert between.cancel() is EntryState.CANCELLED
    virtual.pass_ms(100)
    assert len(fired) == 2
    assert (within.state, len(timer)) == (EntryState.FIRED, 0)


def test_an_exception_does_not_end_a_recurring_timer(virtual: Any) -> None:
    """If a recurring callback raises, the error is reported, and the next run takes place."""
    timer = virtual.timer()
    timer.every(10, lambda: 1 / 0)
    virtual.pass_ms(50)
    assert len(virtual.errors) == 5


def test_a_recurring_timer_may_be_moved(virtual: Any) -> None:
    """After `reschedule`, a recurring timer keeps its interval from the new deadline on."""
    timer, fired = virtual.timer(), []
    handle = timer.every(10, lambda: fired.append(virtual.now_ms()))
    virtual.pass_ms(10)
    assert handle.reschedule(3)
    virtual.pass_ms(25)
    assert fired == [10, 13, 23, 33]


def test_a_coroutine_recurs_without_overlapping_itself(loop_facade: Any) -> None:
    """If a recurring coroutine takes longer than the interval, its next run begins when it has ended."""
    timer, spans = loop_facade.timer(), []

    async def run() -> None:
        began = loop_facade.now_ms()
        await asyncio.sleep(0.025)  # the facade's own time
        spans.append((began, loop_facade.now_ms()))

    timer.every(10, run)
    loop_facade.pass_ms(105)
    assert spans == [(10, 35), (35, 60), (60, 85)]
    timer.close()
    loop_facade.wait(timer.wait_closed())
    assert spans[3:] == [(85, 110)]


@pytest.mark.parametrize(
    "arguments", [{"interval_ms": 0}, {"interval_ms": 1.5}, {"interval_ms": True}, {"fixed": "x"}, {"catch_up": "all"}]
)
def test_a_wrong_rhythm_is_refused(virtual: Any, arguments: dict[str, Any]) -> None:
    """A wrong argument of a recurring timer is refused with an error that names it. Nothing is scheduled."""
    timer = virtual.timer()
    (name,) = arguments
    with pytest.raises(ConfigError, match=f"expected {name}"):
        timer.every(**{"interval_ms": 10, "callback": print, **arguments})
    assert len(timer) == 0


def test_several_mistakes_are_told_at_once() -> None:
    """One error lists all wrong arguments of `Every`."""
    with pytest.raises(ConfigError, match="2 problems"):
        Every(0, "x")  # type: ignore[arg-type]


@given(st.integers(1, 10**9), st.integers(0, 10**15), st.integers(0, 10**12))
def test_the_next_beat_is_one_of_the_rhythm(interval_ms: int, deadline_ms: int, late_ms: int) -> None:
    """After a late run, `next_ms` gives with SKIP the first time after now, with ONCE the last missed time, and
    with ALL the time one interval after the last deadline."""
    now_ms = deadline_ms + late_ms
    all_ms, once_ms, skip_ms = (
        Every(interval_ms, "rate", how).next_ms(deadline_ms, now_ms)
        for how in (CatchUp.ALL, CatchUp.ONCE, CatchUp.SKIP)
    )
    assert all_ms == deadline_ms + interval_ms
    assert now_ms < skip_ms <= now_ms + interval_ms
    assert (skip_ms - deadline_ms) % interval_ms == (once_ms - deadline_ms) % interval_ms == 0
    assert once_ms == (skip_ms if all_ms > now_ms else skip_ms - interval_ms)


def test_a_day_of_beats_passes_in_no_time_by_autojump() -> None:
    """A virtual clock with autojump jumps to the next run while the reaper waits, so a day of runs takes no real
    time."""
    import threading

    from wheel_sched.timers import SystemTimer

    clock, done, fired = VirtualClock(autojump_threshold=0), threading.Event(), []
    with SystemTimer(clock=clock) as timer:

        def run() -> None:
            fired.append(clock.monotonic_ms())
            if len(fired) == 24 * 60:
                handle.cancel()
                done.set()

        handle = timer.every(60_000, run)
        assert done.wait(40)
    assert fired == [60_000 * beat for beat in range(1, 24 * 60 + 1)]


@pytest.mark.parametrize("interval_ms", [2**63 - 1, 2**64, 10**30])
def test_a_huge_interval_waits(virtual: Any, interval_ms: int) -> None:
    """If the interval is beyond the range of every clock, the second run is not at once. The case is from libuv:
    huge_repeat."""
    timer, fired = virtual.timer(), []
    handle = timer.every(interval_ms, fired.append, 1, first_ms=5)
    timer.every(10, fired.append, 2)
    virtual.pass_ms(30)
    assert fired == [1, 2, 2, 2]
    assert handle.remaining_ms() > 2**62
