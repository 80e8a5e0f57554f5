"""Tests of `cancel`: a timer is either run or cancelled, never both."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from wheel_sched.wheel import EntryState

CANCELLED, RUNNING, FIRED = EntryState.CANCELLED, EntryState.RUNNING, EntryState.FIRED


def test_a_cancelled_timer_does_not_run(virtual: Any) -> None:
    """A cancelled timer never runs, and drops its callback and arguments at once."""

    class Argument:
        pass

    timer, fired = virtual.timer(), []
    argument = Argument()
    alive = weakref.ref(argument)
    handle = timer.schedule(10, fired.append, argument)
    del argument
    assert handle.cancel() is CANCELLED
    assert alive() is None
    assert (len(timer), timer.next_ms()) == (0, None)
    virtual.pass_ms(20)
    assert (fired, handle.state) == ([], CANCELLED)


def test_cancelling_twice_or_late_changes_nothing(virtual: Any) -> None:
    """A second `cancel` leaves a timer CANCELLED, and a `cancel` after the run leaves it FIRED."""
    timer, fired = virtual.timer(), []
    twice, late = timer.schedule(10, fired.append, 1), timer.schedule(5, fired.append, 2)
    assert [twice.cancel(), twice.cancel()] == [CANCELLED, CANCELLED]
    virtual.pass_ms(20)
    assert (late.cancel(), late.state, fired) == (FIRED, FIRED, [2])


def test_a_callback_cannot_cancel_itself_any_more(virtual: Any) -> None:
    """If a callback cancels its own timer, `cancel` returns RUNNING."""
    timer, answers = virtual.timer(), []
    handle = timer.schedule(5, lambda: answers.append(handle.cancel()))
    virtual.pass_ms(5)
    assert (answers, handle.state) == ([RUNNING], FIRED)


@pytest.mark.parametrize("position", range(5))
def test_a_callback_cancels_its_siblings_of_the_same_tick(virtual: Any, position: int) -> None:
    """A callback cancels all timers of its tick. Earlier ones have fired, and later ones never fire. The case is
    from folly: CancelTimeout."""
    timer, fired, answers = virtual.timer(), [], []
    handles: list[Any] = []

    def run(number: int) -> None:
        fired.append(number)
        if number == position:
            answers.extend(handle.cancel() for handle in handles)

    handles += [timer.schedule(5, run, number) for number in range(5)]
    virtual.pass_ms(5)
    assert fired == list(range(position + 1))
    assert answers == [FIRED] * position + [RUNNING] + [CANCELLED] * (4 - position)
    assert len(timer) == 0


def test_cancelling_all_leaves_nothing_to_wake_up_for(virtual: Any) -> None:
    """After a thousand timers were cancelled, the reaper or loop wakes at most once. Kafka's reaper wakes once per
    bucket."""
    timer = virtual.timer()
    handles = [timer.schedule(10 + number, print) for number in range(1000)]
    assert {handle.cancel() for handle in handles} == {CANCELLED}
    virtual.pass_ms(1)
    before = timer.statistics.wakeups
    virtual.pass_ms(2000)
    after = timer.statistics.wakeups
    assert after - before <= 1
    virtual.pass_ms(1_000_000)
    assert timer.statistics.wakeups == after
    assert timer.next_ms() is None


def test_an_idle_timer_does_not_wake_up(virtual: Any) -> None:
    """If the only timer is due in an hour, the reaper or loop does not wake up before."""
    timer, fired = virtual.timer(), []
    timer.schedule(3_600_000, fired.append, 1)
    virtual.pass_ms(1)
    before = timer.statistics.wakeups
    virtual.pass_ms(3_599_998)
    assert timer.statistics.wakeups == before
    virtual.pass_ms(1)
    assert fired == [1]


def test_an_earlier_timer_goes_first(virtual: Any) -> None:
    """A new timer that is due earlier ends the sleep for a later one."""
    timer, fired = virtual.timer(), []
    timer.schedule(1000, fired.append, "later")
    virtual.pass_ms(10)
    timer.schedule(5, fired.append, "sooner")
    virtual.pass_ms(5)
    assert fired == ["sooner"]
    virtual.pass_ms(985)
    assert fired == ["sooner", "later"]


def test_cancel_and_wait_answers_at_once_when_nothing_runs(virtual: Any) -> None:
    """`cancel_and_wait` returns at once for a timer that is PENDING, FIRED or CANCELLED."""
    timer = virtual.timer()
    pending, fired = timer.schedule(10, print), timer.schedule(1, lambda: None)
    virtual.pass_ms(1)
    assert virtual.wait(timer.cancel_and_wait(pending)) is CANCELLED
    assert virtual.wait(timer.cancel_and_wait(fired)) is FIRED


def test_cancel_and_wait_waits_for_the_coroutine(loop_facade: Any) -> None:
    """`cancel_and_wait` returns when the timer's coroutine has ended. If the coroutine itself calls it, it does not
    wait."""
    timer, steps = loop_facade.timer(), []

    async def run() -> None:
        steps.append(await timer.cancel_and_wait(handle))
        await asyncio.sleep(0.5)  # the facade's own time
        steps.append("ended")

    handle = timer.schedule(1, run)
    loop_facade.pass_ms(2)
    assert steps == [RUNNING]
    assert loop_facade.wait(timer.cancel_and_wait(handle)) is FIRED
    assert steps == [RUNNING, "ended"]


def test_a_finalizer_may_cancel_a_timer_whenever_it_runs(virtual: Any) -> None:
    """The garbage collector may call a finalizer while the wheel works, and the finalizer may cancel a timer.

    The test uses timers of one tick, because they are the worst case.
    """
    timer, fired = virtual.timer(), []

    class Owner:
        def __init__(self, number: int) -> None:
            self.handle = timer.schedule(50, fired.append, number)
            self.circle = self  # only the collector finds it

        def __del__(self) -> None:
            self.handle.cancel()

    thresholds = gc.get_threshold()
    gc.set_threshold(3, 3, 3)
    try:
        for number in range(300):
            Owner(number)
            timer.schedule(50, fired.append, -1)
            timer.schedule(number % 60, fired.append, -1).touch(50)
        virtual.pass_ms(60)
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert len(timer) == 0
    assert fired.count(-1) == 600
    assert virtual.errors == []
