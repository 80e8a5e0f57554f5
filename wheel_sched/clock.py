"""Clocks: code that runs timers reads the time and sleeps only through a clock, so a test can pass its own clock.

Monotonic time drives delays and never steps. Wall time is for dates, people and other machines, and may step either
way. All readings are rounded down, so a clock is never ahead. Any thread may use a clock. `SystemClock` is the
machine's clock, `wheel_sched.testing.VirtualClock` is for tests.

The standard library passes time and waiting in the same way (`sched.scheduler(timefunc, delayfunc)`). The difference:
`Clock.wait` waits on a condition, so that a new, earlier deadline can wake the code that waits.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """Gives a driver (code that runs due timers, such as the reaper) the time, and a way to wait."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since a fixed but arbitrary moment; never goes back."""
        ...

    def monotonic_ms(self) -> int:
        """`monotonic_ns` in whole milliseconds, rounded down."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, rounded down. This time may step forward or back."""
        ...

    def wait(self, condition: threading.Condition, timeout_ms: float | None) -> bool:
        """Wait on `condition`, which the caller holds, for up to `timeout_ms` of this clock. None: without a limit.

        Returns True after a notification and False after the timeout. A wait may also end early without a notification,
        as with every condition, so the caller must check the awaited state and the clock again.
        """
        ...


class SystemClock:
    """The clock of this machine. It has no state."""

    __slots__ = ()

    monotonic_ns = staticmethod(time.monotonic_ns)  # no method around it, because that would double its cost

    def monotonic_ms(self) -> int:
        """Implements `Clock.monotonic_ms`."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Implements `Clock.wall_ms`."""
        return time.time_ns() // 1_000_000

    def wait(self, condition: threading.Condition, timeout_ms: float | None) -> bool:
        """Implements `Clock.wait`. A wait beyond the platform's limit (49 days on Windows) ends early, with False."""
        if timeout_ms is None:
            return condition.wait()
        return condition.wait(min(max(timeout_ms / 1000, 0.0), threading.TIMEOUT_MAX))

    def __repr__(self) -> str:
        return "<SystemClock>"
