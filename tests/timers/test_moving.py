"""`touch` and `reschedule` of a timer, before, during and after its run."""

from __future__ import annotations

from typing import Any

import pytest

from wheel_sched.wheel import EntryState


def test_a_touched_timer_runs_at_its_new_deadline_only(virtual: Any) -> None:
    """Each `touch` postpones the timer, which runs once, at the last deadline."""
    timer, fired = virtual.timer(), []
    handle = timer.schedule(100, fired.append, 1)
    for _ in range(50):
        virtual.pass_ms(90)
        assert handle.touch(100)
    assert fired == []
    virtual.pass_ms(99)
    assert fired == []
    virtual.pass_ms(1)
    assert (fired, len(timer)) == ([1], 0)


@pytest.mark.parametrize("move", ["touch", "reschedule"])
def test_a_timer_may_be_moved_to_an_earlier_time(virtual: Any, move: str) -> None:
    """A timer that is moved to an earlier time runs then, and not at its old deadline."""
    timer, fired = virtual.timer(), []
    handle = timer.schedule(10_000, fired.append, 1)
    virtual.pass_ms(10)
    assert getattr(handle, move)(5)
    virtual.pass_ms(4)
    assert fired == []
    virtual.pass_ms(1)
    assert fired == [1]
    virtual.pass_ms(20_000)
    assert fired == [1]


@pytest.mark.parametrize("move", ["touch", "reschedule"])
def test_a_timer_moved_to_the_past_runs_at_once(virtual: Any, move: str) -> None:
    """A timer that is moved to the past runs at once. The case is from Tokio: a reset to the past."""
    timer, fired = virtual.timer(), []
    handle = timer.schedule(1000, fired.append, 1)
    getattr(handle, move)(-5)
    virtual.pass_ms(1)
    assert fired == [1]


def test_reschedule_arms_a_fired_timer_again_and_touch_does_not(virtual: Any) -> None:
    """`reschedule` lets a fired timer run again. `touch` does not. The case is from Tokio: a reset after the timer
    fired."""
    timer, fired = virtual.timer(), []
    handle = timer.schedule(5, fired.append, 1)
    virtual.pass_ms(5)
    assert handle.touch(5) is False
    assert handle.reschedule(5) is True
    assert (handle.state, len(timer)) == (EntryState.PENDING, 1)
    virtual.pass_ms(5)
    assert fired == [1, 1]


def test_a_cancelled_timer_stays_cancelled(virtual: Any) -> None:
    """`touch` and `reschedule` return False for a cancelled timer, because it has dropped its callback."""
    timer = virtual.timer()
    handle = timer.schedule(5, print)
    handle.cancel()
    assert [handle.touch(5), handle.reschedule(5)] == [False, False]
    assert (handle.state, len(timer)) == (EntryState.CANCELLED, 0)


def test_a_callback_may_arm_itself_again(virtual: Any) -> None:
    """A callback may reschedule its own timer, as in a test of folly. With a delay of 0 it runs again at once."""
    timer, fired = virtual.timer(), []

    def run() -> None:
        fired.append(virtual.now_ms())
        if len(fired) < 4:
            handle.reschedule(10 if len(fired) < 3 else 0)

    start_ms = virtual.now_ms()
    handle = timer.schedule(10, run)
    virtual.pass_ms(40)
    assert [at - start_ms for at in fired] == [10, 20, 30, 30]
    assert handle.state is EntryState.FIRED


def test_a_callback_moves_its_siblings(virtual: Any) -> None:
    """A callback moves other timers of its tick that have not begun. Each runs once, at its new time."""
    timer, fired = virtual.timer(), []
    others: list[Any] = []

    def first() -> None:
        assert [others[0].touch(10), others[1].reschedule(20), others[2].touch(0)] == [True] * 3

    timer.schedule(5, first)
    others += [timer.schedule(5, fired.append, number) for number in range(3)]
    virtual.pass_ms(5)
    assert fired == [2]
    virtual.pass_ms(10)
    assert fired == [2, 0]
    virtual.pass_ms(10)
    assert fired == [2, 0, 1]
    virtual.pass_ms(100)
    assert (fired, len(timer)) == ([2, 0, 1], 0)
