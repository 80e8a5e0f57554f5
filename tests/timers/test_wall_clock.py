"""Timers that wait for a date and time, while the wall clock is set forward and back."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.timers import Jump
from wheel_sched.timers.deadlines import wall_deadline


def test_a_date_and_time_is_kept(virtual: Any) -> None:
    """A timer with a date of any time zone runs at this time and not before."""
    timer, fired = virtual.timer(), []
    zone = timezone(timedelta(hours=5, minutes=30))
    timer.schedule_at(virtual.wall(5000).astimezone(zone), fired.append, 1)
    virtual.pass_ms(4999)
    assert fired == []
    virtual.pass_ms(1)
    assert (fired, len(timer), timer.next_ms()) == ([1], 0, None)


def test_a_date_that_has_passed_is_due_at_once(virtual: Any) -> None:
    """A date in the past is due at once, even one before 1970."""
    timer, fired = virtual.timer(), []
    timer.schedule_at(virtual.wall(-5), fired.append, 1)
    timer.schedule_at(datetime(1950, 1, 1, tzinfo=UTC), fired.append, 2)
    virtual.pass_ms(1)
    assert sorted(fired) == [1, 2]


def test_a_step_forward_brings_a_following_timer_nearer(virtual: Any) -> None:
    """After a step forward, a timer that follows the wall clock runs within a second. Timers that count elapsed
    time do not move."""
    timer, fired = virtual.timer(), []
    timer.schedule_at(virtual.wall(3_600_000), fired.append, "follow")
    timer.schedule_at(virtual.wall(3_600_000), fired.append, "elapse", on_jump=Jump.ELAPSE)
    timer.schedule(3_600_000, fired.append, "monotonic")
    virtual.pass_ms(10)
    virtual.clock.jump_wall(86_400_000)
    virtual.pass_ms(1000)
    assert fired == ["follow"]
    virtual.pass_ms(3_600_000 - 1011)
    assert fired == ["follow"]
    virtual.pass_ms(1)
    assert fired == ["follow", "elapse", "monotonic"]


def test_a_step_back_puts_a_following_timer_off(virtual: Any) -> None:
    """After a step back, a timer that follows the wall clock waits for its date, although the wheel reaches its
    slot earlier."""
    timer, fired = virtual.timer(), []
    timer.schedule_at(virtual.wall(5000), fired.append, "follow")
    timer.schedule_at(virtual.wall(5000), fired.append, "elapse", on_jump=Jump.ELAPSE)
    virtual.pass_ms(4000)
    virtual.clock.jump_wall(-60_000)
    virtual.pass_ms(1000)
    assert fired == ["elapse"]
    timer.schedule_at(virtual.wall(50), fired.append, "new")
    virtual.pass_ms(50)
    assert fired == ["elapse", "new"]
    virtual.pass_ms(60_000 - 51)
    assert fired == ["elapse", "new"]
    virtual.pass_ms(1)
    assert fired == ["elapse", "new", "follow"]


def test_a_clock_that_jumps_to_and_fro_runs_each_timer_once(virtual: Any) -> None:
    """The wall clock is set a minute ahead and back, and moved by smaller steps down to 1 ms. Each timer runs once."""
    timer, fired = virtual.timer(), []
    handles = [timer.schedule_at(virtual.wall(500 * number), fired.append, number) for number in range(1, 40)]
    for step in (3, -1, -1, -1, 60_000, -60_000, 7, -5000, 5000, -7):
        virtual.clock.jump_wall(step)
        virtual.pass_ms(300)
    virtual.pass_ms(60_000)
    assert sorted(fired) == list(range(1, 40))
    assert len(timer) == 0
    assert {handle.reschedule(10) for handle in handles} == {True}
    virtual.pass_ms(20)
    assert len(fired) == 78


def test_a_wall_timer_can_be_moved_cancelled_and_given_back(virtual: Any) -> None:
    """`touch`, `cancel` and `close` work for a timer with a date as for any other timer."""
    timer, fired = virtual.timer(), []
    touched, cancelled, kept = (timer.schedule_at(virtual.wall(100), fired.append, number) for number in range(3))
    assert touched.touch(200)
    cancelled.cancel()
    assert (len(timer), kept.remaining_ms()) == (2, 100)
    virtual.pass_ms(100)
    assert fired == [2]
    virtual.pass_ms(99)
    assert fired == [2]
    virtual.pass_ms(2)
    assert fired == [2, 0]
    timer.schedule_at(virtual.wall(70), fired.append, 3)
    (pending,) = timer.close()
    assert (pending.delay_ms, pending.args) == (70, (3,))


@pytest.mark.parametrize("when", [datetime(2030, 1, 1), date(2030, 1, 1), 5, "2030-01-01", None])
def test_what_is_no_moment_is_refused(virtual: Any, when: Any) -> None:
    """`schedule_at` accepts only a datetime with a time zone. Without one, the date could mean any of 26 hours."""
    timer = virtual.timer()
    with pytest.raises(Rejected, match="datetime with a time zone"):
        timer.schedule_at(when, print)
    with pytest.raises(Rejected, match="on_jump"):
        timer.schedule_at(virtual.wall(5), print, on_jump="follow")
    assert len(timer) == 0


def test_a_moment_is_rounded_up_to_the_millisecond() -> None:
    """A date that is a microsecond after a whole millisecond counts as the next millisecond."""
    assert wall_deadline(datetime(1970, 1, 1, 0, 0, 1, 0, tzinfo=UTC)) == 1000
    assert wall_deadline(datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)) == 1001
    assert wall_deadline(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == 0
