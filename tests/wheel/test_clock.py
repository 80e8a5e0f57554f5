"""The clock of this machine, `SystemClock`."""

from __future__ import annotations

import threading
import time

import pytest

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.testing import VirtualClock


@pytest.mark.parametrize("clock", [SystemClock(), VirtualClock()], ids=["system", "virtual"])
def test_both_clocks_are_clocks(clock: object) -> None:
    """The system clock and the virtual clock satisfy the protocol `Clock`, which timers require."""
    assert isinstance(clock, Clock)


def test_the_system_clock_floors_its_milliseconds() -> None:
    """The millisecond reading, rounded down, lies between two nanosecond readings."""
    clock = SystemClock()
    before_ns, now_ms, after_ns = clock.monotonic_ns(), clock.monotonic_ms(), clock.monotonic_ns()
    assert before_ns // 1_000_000 <= now_ms <= after_ns // 1_000_000
    before_ns, wall_ms, after_ns = time.time_ns(), clock.wall_ms(), time.time_ns()
    assert before_ns // 1_000_000 <= wall_ms <= after_ns // 1_000_000


def test_a_wait_on_the_system_clock_lasts_its_time() -> None:
    """A wait that nobody notifies lasts its timeout of 20 ms or more, and returns False."""
    clock, condition = SystemClock(), threading.Condition()
    start_ns = clock.monotonic_ns()
    with condition:
        notified = clock.wait(condition, 20)
    assert not notified
    assert 20_000_000 <= clock.monotonic_ns() - start_ns < 5_000_000_000


@pytest.mark.parametrize("timeout_ms", [0, -5, -0.1])
def test_no_time_to_wait_is_no_wait(timeout_ms: float) -> None:
    """A wait with a timeout of 0 or less returns False at once."""
    condition = threading.Condition()
    with condition:
        assert SystemClock().wait(condition, timeout_ms) is False


@pytest.mark.parametrize("timeout_ms", [None, 60_000, 1e30, float("inf")])
def test_a_notification_ends_a_wait_on_the_system_clock(timeout_ms: float | None) -> None:
    """A notification ends a wait of any length, even one that is longer than the platform's limit."""
    clock, condition = SystemClock(), threading.Condition()
    answers: list[bool] = []

    def wait() -> None:
        with condition:
            started.set()
            answers.append(clock.wait(condition, timeout_ms))

    started = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    assert started.wait(10)
    with condition:  # the thread releases the condition when it sleeps
        condition.notify()
    thread.join(10)
    assert answers == [True]
