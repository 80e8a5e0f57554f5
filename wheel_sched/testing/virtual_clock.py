"""A virtual clock: it moves when a test moves it, or by itself when all threads that use it are asleep.

It is a `wheel_sched.clock.Clock`, so real timers, dispatchers and services run on it unchanged. A virtual year takes as
long as the work of its timers takes. `autojump_threshold` is the idea of trio's `MockClock` for threads: when all
waiters have waited for that many real seconds, time jumps to the earliest deadline.

Invariant: time never goes back. A waiter returns "time has passed" only after its deadline, and time does not jump
while a waiter that is due has not returned. Cost: O(waiters) per move.

Threads: any thread may call any method. `advance` acquires the condition of each waiter that it wakes, one after the
other. So do not call `advance` while you hold a lock that a waiting thread acquires before its condition.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

from wheel_sched.errors import ConfigError, Rejected

NS_PER_MS = 1_000_000
WALL_START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z, easy to recognise in logs and assertions
MIN_POLL_SECONDS = 0.001  # how often a waiter checks whether time may jump, when the threshold is shorter


@dataclass(eq=False, slots=True)
class _Waiter:
    condition: threading.Condition
    deadline_ns: int | None  # None = waits for a notification only
    due: bool = False


class VirtualClock:
    """A clock for tests. It moves by `advance`, or by itself when `autojump_threshold` is set.

    Args:
        start_ms: the first value of `monotonic_ms`. Defaults to 0.
        wall_offset_ms: wall time minus monotonic time. Defaults to the start of 2026.
        autojump_threshold: real seconds for which all waiters must have waited before time jumps to the earliest
            deadline; 0: at once. The clock does not see a thread that works instead of waiting. So with several threads
            choose more than the longest work between two waits, such as 0.01. Defaults to None: time moves only by
            `advance`.

    Raises:
        ConfigError: lists all wrong arguments.
    """

    def __init__(
        self,
        start_ms: int = 0,
        *,
        wall_offset_ms: int = WALL_START_MS,
        autojump_threshold: float | None = None,
    ) -> None:
        problems = []
        if type(start_ms) is not int or start_ms < 0:
            problems.append(f"expected start_ms to be an int of at least 0 (milliseconds), got: {start_ms!r}")
        if type(wall_offset_ms) is not int:
            problems.append(f"expected wall_offset_ms to be an int (milliseconds), got: {wall_offset_ms!r}")
        if autojump_threshold is not None and not _is_duration(autojump_threshold):
            problems.append(
                f"expected autojump_threshold to be None or at least 0 (real seconds), got: {autojump_threshold!r}"
            )
        if problems:
            raise ConfigError(problems)
        self._now_ns = start_ms * NS_PER_MS
        self._wall_offset_ms = wall_offset_ms
        self._threshold = autojump_threshold
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # notified when a waiter arrives
        self._waiters: dict[_Waiter, None] = {}
        self._busy_at = time.monotonic()  # real seconds: the last time a waiter arrived or left, or time moved

    def monotonic_ns(self) -> int:
        """The virtual time in nanoseconds."""
        return self._now_ns

    def monotonic_ms(self) -> int:
        """The virtual time in milliseconds, rounded down."""
        return self._now_ns // NS_PER_MS

    def wall_ms(self) -> int:
        """The virtual wall time in ms since 1970: monotonic time plus an offset, which `jump_wall` changes."""
        with self._lock:
            return self._now_ns // NS_PER_MS + self._wall_offset_ms

    @property
    def waiting(self) -> int:
        """The number of threads that wait on this clock."""
        with self._lock:
            return len(self._waiters)

    def advance(self, ms: float) -> None:
        """Advance time by `ms` and wake every waiter whose deadline is reached.

        Raises:
            Rejected: `ms` is negative or not a finite number; time has not moved.
        """
        if not _is_duration(ms):
            raise Rejected(f"expected ms to be a number of at least 0 (milliseconds), got: {ms!r}; time has not moved")
        with self._lock:
            conditions = {waiter.condition: None for waiter in self._move_to(self._now_ns + _to_ns(ms))}
        # A waiter registers and falls asleep while it holds its condition, so it is asleep once we hold the condition.
        for condition in conditions:
            with condition:
                condition.notify_all()

    def jump_wall(self, ms: int) -> None:
        """Step the wall clock by `ms` (negative: back), as an administrator or NTP does. No waiter wakes.

        Raises:
            Rejected: `ms` is not an int; the clock has not moved.
        """
        if type(ms) is not int:
            raise Rejected(f"expected ms to be an int (milliseconds), got: {ms!r}; the wall clock has not moved")
        with self._lock:
            self._wall_offset_ms += ms

    def wait(self, condition: threading.Condition, timeout_ms: float | None) -> bool:
        """Wait on `condition`, which the caller holds, for up to `timeout_ms` virtual milliseconds.

        Returns False when the timeout has passed, and True when the condition was notified before that. When the
        timeout of one thread has passed, `advance` notifies the condition. This wakes all threads that wait on it, and
        a thread whose timeout has not passed returns True. So check in a loop what you wait for.
        """
        waiter = _Waiter(condition, None)
        with self._lock:
            if timeout_ms is not None and timeout_ms != math.inf:
                waiter.deadline_ns = self._now_ns + max(_to_ns(timeout_ms), 0)
                waiter.due = waiter.deadline_ns <= self._now_ns
            self._waiters[waiter] = None
            self._busy_at = time.monotonic()
            self._changed.notify_all()
        jumps = self._threshold is not None and waiter.deadline_ns is not None
        poll_seconds = max(self._threshold or 0.0, MIN_POLL_SECONDS) if jumps else None
        try:
            if self._threshold == 0:
                self._jump_if_idle()
            while not waiter.due:
                if condition.wait(poll_seconds):
                    return not waiter.due
                self._jump_if_idle()
            return False
        finally:
            with self._lock:
                del self._waiters[waiter]
                self._busy_at = time.monotonic()

    def wait_for_waiters(self, count: int = 1, timeout_seconds: float = 30.0) -> None:
        """Block, in real time, until at least `count` threads wait on this clock. Then a test may advance it.

        Raises:
            TimeoutError: fewer threads wait after `timeout_seconds` real seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._waiters) >= count, timeout_seconds):
                raise TimeoutError(f"expected {count} waiters within {timeout_seconds} s, got: {len(self._waiters)}")

    def __repr__(self) -> str:
        with self._lock:
            deadlines = [waiter.deadline_ns for waiter in self._waiters if waiter.deadline_ns is not None]
            next_wake = f"{(min(deadlines) - self._now_ns) / NS_PER_MS:+g}ms" if deadlines else "none"
            return f"<VirtualClock now={self._now_ns / NS_PER_MS:g}ms waiting={len(self._waiters)} next={next_wake}>"

    def _move_to(self, now_ns: int) -> list[_Waiter]:
        """Set the time, mark the waiters that are due and return them. The caller holds the lock."""
        self._now_ns = now_ns
        self._busy_at = time.monotonic()
        due = [w for w in self._waiters if not w.due and w.deadline_ns is not None and w.deadline_ns <= now_ns]
        for waiter in due:
            waiter.due = True
        return due

    def _jump_if_idle(self) -> None:
        """Jump to the earliest deadline if all waiters have waited for the threshold.

        The caller is a waiter that holds its condition. It must not acquire the condition of another waiter, because
        two locks without an order can deadlock. So the other waiters notice the jump by themselves: each
        calls this method once per threshold.
        """
        with self._lock:
            if self._threshold is None or time.monotonic() - self._busy_at < self._threshold:
                return
            if any(waiter.due for waiter in self._waiters):
                return  # a waiter is about to return and may change the next deadline
            deadlines = [waiter.deadline_ns for waiter in self._waiters if waiter.deadline_ns is not None]
            if deadlines:
                self._move_to(min(deadlines))


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _to_ns(ms: float) -> int:
    """Milliseconds as nanoseconds, rounded up so that no waiter wakes early. Ints of any size stay exact."""
    return ms * NS_PER_MS if isinstance(ms, int) else math.ceil(ms * NS_PER_MS)
