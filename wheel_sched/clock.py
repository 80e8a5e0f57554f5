"""Clocks: the only way in which timers and other drivers read time and sleep. A test can pass another clock.

Monotonic time drives the wheel and never steps; wall time names moments to people and other machines, and may step
either way. All readings are floored: a clock never says a millisecond has come before it has. Any thread may use a
clock. `SystemClock` is the real one, `wheel_sched.testing.VirtualClock` the one of the tests.

Two injected functions are the stdlib's idea too (`sched.scheduler(timefunc, delayfunc)`); waiting goes through a
condition here, because whoever waits must be woken early when something earlier is scheduled.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """What a driver needs of time."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since a fixed but arbitrary moment; never goes back."""
        ...

    def monotonic_ms(self) -> int:
        """`monotonic_ns` in whole milliseconds, rounded down."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, rounded down; may step."""
        ...

    def wait(self, condition: threading.Condition, timeout_ms: float | None) -> bool:
        """Wait on `condition`, which the caller holds, for up to `timeout_ms` of this clock (None = for ever).

        Answers whether it was notified; False = the time has passed. As with every condition, either answer may
        come without cause: look at what was waited for, and at the clock, again.
        """
        ...


class SystemClock:
    """The machine's clocks. Stateless: all instances are alike."""

    __slots__ = ()

    monotonic_ns = staticmethod(time.monotonic_ns)  # as it is: a method around it would double its cost

    def monotonic_ms(self) -> int:
        """See `Clock`."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1_000_000

    def wait(self, condition: threading.Condition, timeout_ms: float | None) -> bool:
        """See `Clock`. More than the platform can wait (49 days on Windows) is cut to that: a False too early."""
        if timeout_ms is None:
            return condition.wait()
        return condition.wait(min(max(timeout_ms / 1000, 0.0), threading.TIMEOUT_MAX))

    def __repr__(self) -> str:
        return "<SystemClock>"
