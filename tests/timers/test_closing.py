"""Closing a timer: what `close` returns, what it does in a callback, and what later calls do."""

from __future__ import annotations

from typing import Any

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.timers import Every, TimerTask
from wheel_sched.wheel import EntryState


def test_close_gives_back_what_was_pending(virtual: Any) -> None:
    """`close` returns pending callbacks with their remaining time, to schedule them elsewhere. The case is from
    Netty: testStopTimer."""
    timer, fired = virtual.timer(), []
    timer.every(500, fired.append, "later", key="k")
    timer.schedule(100, fired.append, "sooner")
    timer.schedule(1, fired.append, "ran")
    timer.schedule(50, fired.append, "cancelled").cancel()
    virtual.pass_ms(10)
    sooner, later = timer.close()
    assert (sooner.delay_ms, sooner.args, sooner.key, sooner.every) == (90, ("sooner",), None, None)
    assert (later.delay_ms, later.args, later.key, later.every) == (490, ("later",), "k", Every(500))
    other = virtual.timer()
    other.schedule(sooner.delay_ms, sooner.callback, *sooner.args)
    virtual.pass_ms(90)
    assert fired == ["ran", "sooner"]


def test_a_closed_timer_takes_nothing_and_says_so(virtual: Any) -> None:
    """After `close`, calls that schedule raise an error, and all other calls have no effect. A second `close`
    returns an empty list."""
    timer, fired = virtual.timer(), []
    done, open_end = timer.schedule(1, fired.append, 1), timer.schedule(50, fired.append, 2)
    virtual.pass_ms(1)
    assert len(timer.close()) == 1
    for call in (
        lambda: timer.schedule(5, print),
        lambda: timer.schedule(5, print, key="k"),
        lambda: timer.schedule_if_absent("k", 5, print),
        lambda: timer.schedule_at(virtual.wall(5), print),
        lambda: timer.every(5, print),
        lambda: timer.add(TimerTask(5, print)),
    ):
        with pytest.raises(Rejected, match="closed; nothing was scheduled"):
            call()
    assert [handle.touch(5) for handle in (done, open_end)] == [False, False]
    assert [handle.reschedule(5) for handle in (done, open_end)] == [False, False]
    assert (done.cancel(), open_end.cancel()) == (EntryState.FIRED, EntryState.CANCELLED)
    assert (len(timer), timer.next_ms(), timer.get("k"), timer.cancel("k")) == (0, None, None, None)
    assert (timer.close(), timer.closed) == ([], True)
    virtual.pass_ms(100)
    assert fired == [1]


def test_a_callback_may_close_its_timer(facade: Any) -> None:
    """If a callback calls `close`, this does not block. It also returns timers of the same tick that have not begun."""
    timer, fired, given = facade.timer(), [], []

    def close() -> None:
        given.extend(pending.args[0] for pending in timer.close())

    timer.schedule(5, close)
    for number in range(3):
        timer.schedule(5, fired.append, number)
    timer.schedule(500, fired.append, "later")
    facade.until(lambda: timer.closed and len(given) == 4 - len(fired))
    assert sorted(map(str, [*given, *fired])) == ["0", "1", "2", "later"]
    assert "later" in given
    if facade.virtual:
        assert fired == []


def test_a_timer_that_was_never_used_closes(virtual: Any) -> None:
    """`close` of a timer without any earlier call returns an empty list, and so does a second `close`."""
    timer = virtual.timer()
    assert [timer.close(), timer.close()] == [[], []]


def test_a_recurring_timer_ends_with_its_timer(virtual: Any) -> None:
    """If the callback of a recurring timer closes the whole timer facade, it does not run again."""
    timer, fired = virtual.timer(), []

    def run() -> None:
        fired.append(1)
        timer.close()

    handle = timer.every(10, run)
    virtual.pass_ms(100)
    assert (fired, handle.state) == ([1], EntryState.FIRED)


def test_no_more_than_max_pending_wait(virtual: Any) -> None:
    """With `max_pending=2` a third pending timer is rejected, as in Netty. A cancel or a run makes room for another
    one."""
    timer = virtual.timer(max_pending=2)
    first, _ = timer.schedule(10, print), timer.schedule(5, lambda: None)
    with pytest.raises(Rejected, match="fewer than max_pending=2 timers to wait; nothing was scheduled"):
        timer.schedule(10, print)
    first.cancel()
    timer.schedule(20, print)
    with pytest.raises(Rejected, match="max_pending"):
        timer.every(10, print)
    virtual.pass_ms(5)
    timer.schedule(30, print)
    assert len(timer) == 2
