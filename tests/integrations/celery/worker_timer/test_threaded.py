"""ThreadedWheelTimer: the timer for Celery workers without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
from wheel_sched_celery.worker_timer import ThreadedWheelTimer

DEADLINE_S = 30.0


@pytest.fixture
def timer() -> Iterator[ThreadedWheelTimer]:
    timer = ThreadedWheelTimer(max_interval=60)
    yield timer
    timer.stop()


def test_entries_run_in_the_timers_thread_and_not_before_their_time(timer: ThreadedWheelTimer) -> None:
    """The first entry starts the timer's thread. The thread runs the entry when it is due."""
    assert not timer.is_alive()
    ran = threading.Event()
    seen: list[Any] = []
    due = monotonic() + 0.02

    def callback() -> None:
        seen.extend((monotonic(), threading.current_thread()))
        ran.set()

    timer.call_at(due, callback)
    assert ran.wait(DEADLINE_S)
    assert seen[0] >= due
    assert seen[1] is timer


def test_an_earlier_entry_is_not_kept_waiting_by_a_later_one(timer: ThreadedWheelTimer) -> None:
    """A new entry with an earlier time wakes the thread. Stock Celery sleeps until `max_interval` is over, here a
    minute."""
    later = timer.call_after(3600, pytest.fail)
    soon = threading.Event()
    timer.call_after(0.02, soon.set)
    assert soon.wait(DEADLINE_S)
    timer.cancel(later)
    assert timer.empty()


def test_an_error_is_reported_and_the_timer_continues() -> None:
    """`on_error` gets the error, and the next entry runs."""
    errors: list[Exception] = []
    timer = ThreadedWheelTimer(on_error=errors.append)
    ran = threading.Event()
    timer.call_after(0, lambda: 1 / 0)
    timer.call_after(0.01, ran.set)
    assert ran.wait(DEADLINE_S)
    timer.stop()
    assert [type(error) for error in errors] == [ZeroDivisionError]


def test_all_methods_of_timer2_are_there(timer: ThreadedWheelTimer) -> None:
    """The timer has all methods that Celery and its plugins call."""
    assert bool(timer)
    entry = timer.Entry(print)
    timer.enter(entry, monotonic() + 100, priority=None)
    timer.enter_after(100, timer.Entry(print))
    repeated = timer.call_repeatedly(100, print)
    assert len(timer) == 3
    assert next(each.entry for each in timer.queue) is entry
    assert len(timer.schedule.queue) == 3
    timer.cancel(repeated)
    timer.clear()
    assert timer.empty()


def test_next_runs_what_is_due_without_the_thread() -> None:
    """`next(timer)` runs due entries without the timer's thread. Celery's own tests use it."""
    timer = ThreadedWheelTimer()
    ran: list[int] = []
    timer.schedule.call_at(0, ran.append, (1,))
    assert timer.next() is None
    assert ran == [1]
    assert next(timer) is None  # nothing waits: no wait to ask for
    timer.schedule.call_after(1.5, ran.append, (2,))
    assert 0 < (timer.next() or 0) <= 1.51


def test_on_tick_gets_the_wait() -> None:
    """As in stock Celery, `on_tick` gets the seconds until the next entry, at most `max_interval`."""
    ticks: list[float] = []
    heard = threading.Event()

    def tick(delay_s: float) -> None:
        ticks.append(delay_s)
        heard.set()

    timer = ThreadedWheelTimer(on_tick=tick, max_interval=5)
    timer.call_after(3600, print)
    assert heard.wait(DEADLINE_S)
    timer.stop()
    assert ticks[0] == 5


def test_stop_before_start_and_twice_is_quiet() -> None:
    """`stop` raises no error, and afterwards the timer's thread does not run."""
    never = ThreadedWheelTimer()
    never.stop()
    never.stop()
    timer = ThreadedWheelTimer()
    timer.call_after(3600, print)
    timer.stop()
    timer.stop()
    assert not timer.is_alive()


def test_a_callback_may_stop_its_own_timer() -> None:
    """A worker that is shut down by an entry of its timer must not wait for itself."""
    timer = ThreadedWheelTimer()
    timer.call_after(0, timer.stop)
    timer.join(DEADLINE_S)
    assert not timer.is_alive()


def test_ten_threads_start_and_stop_fifty_timers_each() -> None:
    """All timers have ended, and no thread waits for ever."""

    def life() -> None:
        for _ in range(50):
            timer = ThreadedWheelTimer()
            ran = threading.Event()
            timer.call_after(0, ran.set)
            assert ran.wait(DEADLINE_S)
            timer.stop()
            assert not timer.is_alive()

    threads = [threading.Thread(target=life) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_with_spawn_a_blocked_entry_blocks_nobody_else() -> None:
    """A full pool of greenlets blocks the caller that adds a task. With `spawn`, heartbeats are still sent."""

    def spawn(fun: Any, *args: Any) -> None:
        threading.Thread(target=fun, args=args, daemon=True).start()

    timer = ThreadedWheelTimer(spawn=spawn)
    full, beaten = threading.Event(), threading.Event()
    for _ in range(3):
        timer.call_after(0, full.wait, (DEADLINE_S,))
    timer.call_after(0.01, beaten.set)
    assert beaten.wait(DEADLINE_S)
    full.set()
    timer.stop()
