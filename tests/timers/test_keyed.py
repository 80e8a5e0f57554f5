"""Timers with a key: a new timer replaces the one with its key, or is scheduled only if there is none."""

from __future__ import annotations

from typing import Any

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.timers import TimerTask
from wheel_sched.wheel import EntryState


def test_a_key_holds_one_timer(virtual: Any) -> None:
    """A new timer with a key cancels the old timer with this key. The case is from Kafka: testRescheduleTimer."""
    timer, fired = virtual.timer(), []
    old = timer.schedule(10, fired.append, "old", key="k")
    new = timer.schedule(20, fired.append, "new", key="k")
    assert (old.state, timer.get("k"), len(timer), new.key) == (EntryState.CANCELLED, new, 1, "k")
    virtual.pass_ms(30)
    assert (fired, timer.get("k")) == (["new"], None)


def test_a_timer_replaced_when_it_had_expired_already_does_not_run(virtual: Any) -> None:
    """Two timers are due in one tick. The first replaces the second by its key, so the second does not run."""
    timer, fired = virtual.timer(), []
    timer.schedule(10, lambda: timer.schedule(5, fired.append, "new", key="k"))
    timer.schedule(10, fired.append, "old", key="k")
    virtual.pass_ms(20)
    assert fired == ["new"]


def test_if_absent_leaves_what_is_there(virtual: Any) -> None:
    """If a timer with the key waits, `schedule_if_absent` returns its handle. The case is from Kafka:
    testTimerScheduleIfAbsent."""
    timer, fired = virtual.timer(), []
    first = timer.schedule_if_absent("k", 10, fired.append, 1)
    assert timer.schedule_if_absent("k", 5, fired.append, 2) is first
    virtual.pass_ms(10)
    assert fired == [1]
    again = timer.schedule_if_absent("k", 5, fired.append, 3)
    assert again is not first
    virtual.pass_ms(5)
    assert fired == [1, 3]


def test_a_key_can_be_cancelled(virtual: Any) -> None:
    """`cancel` with a key cancels the key's timer. If there is none, it returns None. The case is from Kafka:
    testCancelTimer."""
    timer, fired = virtual.timer(), []
    timer.schedule(10, fired.append, 1, key="k")
    assert [timer.cancel("k"), timer.cancel("k")] == [EntryState.CANCELLED, None]
    virtual.pass_ms(10)
    assert fired == []


def test_a_callback_may_take_its_own_key_again(virtual: Any) -> None:
    """A callback may schedule a timer with its own key, because its timer gives the key back before the callback
    begins."""
    timer, fired = virtual.timer(), []

    def run() -> None:
        fired.append(timer.get("k"))
        timer.schedule_if_absent("k", 10, fired.append, "second")

    timer.schedule(10, run, key="k")
    virtual.pass_ms(20)
    assert fired == [None, "second"]


def test_a_recurring_timer_keeps_its_key_and_ends_when_replaced(virtual: Any) -> None:
    """A recurring timer has its key between runs. It ends when another timer takes the key, even within its own
    callback."""
    timer, fired = virtual.timer(), []

    def run() -> None:
        fired.append("beat")
        if len(fired) == 3:
            timer.schedule(5, fired.append, "replaced", key="k")

    beat = timer.every(10, run, key="k")
    virtual.pass_ms(25)
    assert timer.get("k") is beat
    virtual.pass_ms(100)
    assert fired == ["beat"] * 3 + ["replaced"]
    assert beat.state is EntryState.FIRED


def test_a_fired_timer_takes_its_key_back_unless_another_has_it(virtual: Any) -> None:
    """`reschedule` of a fired timer gives it its key again. If another timer has the key, `reschedule` returns
    False."""
    timer, fired = virtual.timer(), []
    first = timer.schedule(5, fired.append, 1, key="k")
    virtual.pass_ms(5)
    assert first.reschedule(5)
    assert timer.get("k") is first
    second = timer.schedule(5, fired.append, 2, key="k")
    virtual.pass_ms(5)
    third = timer.schedule(5, fired.append, 3, key="k")
    assert second.reschedule(5) is False
    virtual.pass_ms(5)
    assert (fired, timer.get("k"), third.state) == ([1, 2, 3], None, EntryState.FIRED)


@pytest.mark.parametrize("key", [[], {}, None])
def test_what_cannot_be_a_key_is_refused(virtual: Any, key: Any) -> None:
    """The timer refuses an unhashable key, and None."""
    timer = virtual.timer()
    with pytest.raises(Rejected, match=r"expected key to be .*; nothing was scheduled"):
        timer.schedule_if_absent(key, 5, print)
    assert len(timer) == 0


def test_a_task_added_again_is_moved(virtual: Any) -> None:
    """Adding a task that already waits moves it to its new time, and it runs once. The case is from Kafka:
    TimerTaskListTest.testAll."""
    timer, fired = virtual.timer(), []
    tasks = [TimerTask(10 + number, fired.append, (number,)) for number in range(5)]
    for task in tasks:
        timer.add(task)
    assert len(timer) == 5
    tasks[0].delay_ms = 50
    handles = [timer.add(task) for task in tasks]
    assert len(timer) == 5
    virtual.pass_ms(60)
    assert fired == [1, 2, 3, 4, 0]
    assert {handle.state for handle in handles} == {EntryState.FIRED}


def test_a_full_timer_still_replaces(virtual: Any) -> None:
    """At `max_pending` timers, a new timer may still replace the one with its key."""
    timer = virtual.timer(max_pending=1)
    timer.schedule(10, print, key="k")
    timer.schedule(20, print, key="k")
    with pytest.raises(Rejected, match="max_pending=1"):
        timer.schedule(20, print, key="other")
    assert (len(timer), timer.get("other")) == (1, None)
