"""The reaper calls no callback early, sleeps while no callback is due, and ends its thread when it is closed."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

import pytest

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.purgatory import Reaper
from wheel_sched.testing import VirtualClock
from wheel_sched.timers import queue
from wheel_sched.wheel import CORES


@pytest.fixture(params=["the core there is", "under a lock"])
def under_lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with the core that is installed, and with the pure core, which the reaper uses under a lock."""
    if request.param == "under a lock":
        monkeypatch.setattr(queue, "TimingWheel", CORES["pure"])


@pytest.mark.usefixtures("under_lock")
def test_callbacks_come_in_time_and_never_early() -> None:
    """In real time 60 callbacks all run, and none runs before its delay has passed."""
    fired: list[tuple[int, float]] = []
    done = threading.Event()
    with Reaper() as reaper:
        start = time.monotonic()

        def at(delay_ms: int) -> None:
            fired.append((delay_ms, (time.monotonic() - start) * 1000))
            if len(fired) == 60:
                done.set()

        for delay_ms in [*range(30), *range(30)]:
            reaper.schedule(delay_ms, lambda delay_ms=delay_ms: at(delay_ms))
        assert done.wait(30)
        assert len(reaper) == 0
    assert all(at_ms >= delay_ms for delay_ms, at_ms in fired)


@pytest.mark.usefixtures("under_lock")
def test_what_was_cancelled_is_not_called() -> None:
    """A callback that is cancelled before its time is never called, and no longer counts as waiting."""
    clock, called = VirtualClock(), list[str]()
    with Reaper(clock=clock) as reaper:
        handles = [reaper.schedule(10, lambda: called.append("no")) for _ in range(5)]
        assert handles[0].deadline_ms == 10
        last = threading.Event()
        reaper.schedule(20, last.set)
        for handle in handles:
            handle.cancel()
        assert len(reaper) == 1
        clock.wait_for_waiters(1)
        clock.advance(20)
        assert last.wait(30)
    assert called == []


@pytest.mark.usefixtures("under_lock")
def test_an_earlier_timer_wakes_the_reaper_and_a_later_one_does_not() -> None:
    """The reaper sleeps until the earliest deadline. A new timer wakes it only if its deadline is earlier."""
    clock = VirtualClock()
    with Reaper(clock=clock) as reaper:
        reaper.schedule(1_000, lambda: None)
        clock.wait_for_waiters(1)
        for _ in range(50):
            reaper.schedule(2_000, lambda: None)
        assert reaper.sleeps == 1
        soon = threading.Event()
        reaper.schedule(10, soon.set)
        clock.advance(10)
        assert soon.wait(30)
        assert reaper.sleeps >= 1


def test_a_callback_that_raises_is_told_and_the_others_run(until: Any) -> None:
    """If a callback raises, `on_error` gets the callback and the error, and other callbacks run."""
    reports: list[Any] = []

    def bad() -> None:
        raise ValueError("bad")

    good = threading.Event()
    with Reaper(on_error=lambda callback, error: reports.append((callback, str(error)))) as reaper:
        reaper.schedule(0, bad)
        reaper.schedule(0, good.set)
        assert good.wait(30)
    assert reports == [(bad, "bad")]


def test_errors_are_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    """Without `on_error`, the error of a callback is logged with its traceback."""
    done = threading.Event()
    with Reaper() as reaper:
        reaper.schedule(0, lambda: 1 // 0)
        reaper.schedule(1, done.set)
        assert done.wait(30)
    assert "purgatory.callback_failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_unused_reaper_has_no_thread_and_a_closed_one_takes_nothing(new_threads: Any) -> None:
    """The first timer starts the reaper's thread, and `close` ends it. Waiting callbacks are not called, and
    `schedule` then raises an error."""
    called: list[int] = []
    reaper = Reaper()
    assert new_threads() == []
    reaper.schedule(60_000, lambda: called.append(1))
    reaper.close()
    reaper.close()
    assert (new_threads(), len(reaper), called) == ([], 0, [])
    with pytest.raises(Rejected, match="closed"):
        reaper.schedule(1, lambda: None)
    assert repr(reaper) == "<Reaper closed pending=0>"


def test_a_callback_may_close_its_reaper() -> None:
    """If a callback closes its reaper, `close` does not wait for this callback. No later callback is called."""
    closed = threading.Event()
    called: list[int] = []
    reaper = Reaper()

    def close() -> None:
        reaper.close()
        closed.set()

    reaper.schedule(50, lambda: called.append(1))
    reaper.schedule(0, close)
    assert closed.wait(30)
    assert (len(reaper), called) == (0, [])


def test_a_callback_that_comes_while_the_reaper_closes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` empties the queue just before a callback is inserted. The caller gets an error, the queue stays empty."""
    reaper = Reaper()
    insert = reaper._insert

    def late(callback: Any, deadline_ms: int) -> Any:
        reaper.close()
        return insert(callback, deadline_ms)

    monkeypatch.setattr(reaper, "_insert", late)
    with pytest.raises(Rejected, match="nothing was scheduled"):
        reaper.schedule(50, print)
    assert len(reaper) == 0


def test_a_sleeping_reaper_keeps_nothing_alive(until: Any) -> None:
    """While the reaper waits for the next callback, it does not refer to the last one."""

    class Target:
        def call(self) -> None: ...

    clock = VirtualClock()
    with Reaper(clock=clock) as reaper:
        target = Target()
        reference = weakref.ref(target)
        reaper.schedule(1, target.call)
        reaper.schedule(86_400_000, lambda: None)
        del target
        clock.wait_for_waiters(1)
        clock.advance(1)
        until(lambda: reference() is None)
        assert len(reaper) == 1


@pytest.mark.parametrize("error", [ValueError("again"), SystemExit(1)], ids=repr)
def test_an_error_hook_that_raises_does_not_end_the_reaper(error: BaseException) -> None:
    """If `on_error` itself raises, the reaper's thread still calls the other callbacks."""

    def hook(callback: object, raised: Exception) -> None:
        raise error

    done = threading.Event()
    with Reaper(on_error=hook) as reaper:
        reaper.schedule(0, lambda: 1 // 0)
        reaper.schedule(1, done.set)
        assert done.wait(30)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_a_callback_that_would_end_its_thread_does_not(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """If a callback raises SystemExit or a similar error, the error is logged, and the thread calls the other
    callbacks."""

    def ends() -> None:
        raise error

    done = threading.Event()
    with Reaper() as reaper:
        reaper.schedule(0, ends)
        reaper.schedule(1, done.set)
        assert done.wait(30)
    assert type(error).__name__ in caplog.text


def test_a_thread_that_cannot_be_started_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the thread cannot be started, `schedule` raises the error and schedules nothing. The next `schedule` tries
    again."""

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done = threading.Event()
    with Reaper() as reaper:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuses)
            with pytest.raises(RuntimeError, match="can't start"):
                reaper.schedule(1, done.set)
        assert len(reaper) == 0
        reaper.schedule(1, done.set)
        assert done.wait(30)


def test_wrong_shapes_are_told() -> None:
    """A wrong wheel size raises the wheel's error."""
    with pytest.raises(ConfigError, match="wheel_size"):
        Reaper(wheel_size=20)


@pytest.mark.slow
def test_ten_threads_start_and_close_fifty_reapers(new_threads: Any) -> None:
    """Ten threads make and close reapers: some with a timer, some unused, all closed twice. No thread of a reaper
    remains."""

    def work() -> None:
        for number in range(50):
            reaper = Reaper()
            if number % 3:
                reaper.schedule(number % 2, lambda: None)
            reaper.close()
            reaper.close()

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert new_threads() == []
