"""Heartbeats: a member expires when it sends no heartbeat for its session timeout.

This is Kafka's session timeout of a consumer group, without an operation per heartbeat. Each member has one entry in a
deadline queue. A beat only notes the later deadline in this entry. However often a member beats, its entry moves in the
queue once per timeout. A member expires once. It does not expire if it beats, is removed or is replaced before its
expiry has begun.

Cost: a beat is a dict look-up and two attribute writes under a lock. A member is a dict entry and a queue entry.

Threads: any thread may call any method. `on_expired` runs under no lock, in the timer's thread or in the thread that
calls `run_due`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.errors import ConfigError
from wheel_sched.purgatory.reaper import Handle, Timer
from wheel_sched.timers.queue import NS_PER_MS, DeadlineQueue
from wheel_sched.wheel import EntryState, TimerTaskEntry

M = TypeVar("M", bound=Hashable)

_BATCH = 256


class HeartbeatMonitor(Generic[M]):
    """Watches members, and expires each one that sends no heartbeat for its timeout.

    Args:
        timeout_ms: longest time between two beats, for members without their own timeout.
        on_expired: called with each member that has expired, after it was removed.
        timer: calls `run_due` when members expire; several monitors may share it. Defaults to None: the owner calls
            `run_due` at `next_ms`.
        clock: the timer's clock. Defaults to the machine's.
        tick_ms: expiries round up to it, so that members expire together. Defaults to 1.

    Raises:
        ConfigError: `timeout_ms` or `tick_ms` is not an int of at least 1.
    """

    def __init__(
        self,
        timeout_ms: int,
        on_expired: Callable[[M], object],
        *,
        timer: Timer | None = None,
        clock: Clock | None = None,
        tick_ms: int = 1,
    ) -> None:
        self.timeout_ms = _timeout(timeout_ms)
        self._on_expired = on_expired
        self._timer = timer
        self._clock: Clock = SystemClock() if clock is None else clock
        self._now_ns = self._clock.monotonic_ns
        self._lock = threading.Lock()
        self._queue: DeadlineQueue[M] = DeadlineQueue(self._clock.monotonic_ms(), tick_ms=tick_ms)
        self._members: dict[M, TimerTaskEntry[M]] = {}
        self._timeouts: dict[M, int] = {}  # of members with their own timeout
        self._alarm: Handle | None = None
        self._alarm_ms: float = math.inf  # when the timer calls; infinite without an alarm
        self._expired = 0

    def add(self, member: M, timeout_ms: int | None = None) -> None:
        """Add a member, whose timeout begins now. A member that exists already begins anew, with this timeout.

        Raises:
            ConfigError: `timeout_ms` is not an int of at least 1; nothing was changed.
            Rejected: the timer is closed; the member is not watched, even if it was before.
        """
        own_ms = None if timeout_ms is None else _timeout(timeout_ms)
        with self._lock:
            self._forget(member)
            if own_ms is not None:
                self._timeouts[member] = own_ms
            deadline_ms = (own_ms or self.timeout_ms) - (-self._now_ns() // NS_PER_MS)
            self._members[member] = self._queue.schedule(member, deadline_ms)
            try:
                self._rearm(deadline_ms)
            except BaseException:
                self._forget(member)
                raise

    def beat(self, member: M) -> bool:
        """Record a heartbeat of a member. Returns False if it is not a member now."""
        lock = self._lock
        lock.acquire()  # `with` would double the cost of this method
        try:
            entry = self._members.get(member)
            if entry is None:
                return False
            timeout_ms = self._timeouts.get(member, self.timeout_ms) if self._timeouts else self.timeout_ms
            deadline_ms = timeout_ms - (-self._now_ns() // NS_PER_MS)  # rounded up
            if not entry.touch(deadline_ms):  # `_due` has returned the entry, but the expiry has not begun
                entry.reschedule(deadline_ms)
                self._rearm(deadline_ms)
            return True
        finally:
            lock.release()

    def remove(self, member: M) -> bool:
        """Remove a member. `on_expired` is not called for it. Returns False if it is not a member now."""
        with self._lock:
            return self._forget(member)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __len__(self) -> int:
        return len(self._members)

    @property
    def clock(self) -> Clock:
        """The clock that the monitor reads."""
        return self._clock

    @property
    def expired(self) -> int:
        """How many members have expired."""
        return self._expired

    def next_ms(self) -> int | None:
        """When the next member expires if it sends no heartbeat, in monotonic ms of the clock; None without members."""
        with self._lock:
            return self._queue.next_ms()

    def run_due(self) -> int:
        """Expire the due members. Returns how many. An error of `on_expired` is raised; the other members stay due."""
        count = 0
        try:
            while due := self._due():
                for place, entry in enumerate(due):
                    try:
                        count += self._expire(entry)
                    except BaseException:
                        self._return(due[place + 1 :])
                        raise
        finally:
            with self._lock:
                self._drop_alarm()
                self._rearm(self._queue.next_ms())
        return count

    def close(self) -> list[M]:
        """Remove and return all members, without expiry. The monitor may be used again."""
        with self._lock:
            members = list(self._members)
            self._members.clear()
            self._timeouts.clear()
            self._queue.clear()
            self._drop_alarm()
            return members

    def __repr__(self) -> str:
        return f"<HeartbeatMonitor members={len(self)} expired={self._expired} timeout={self.timeout_ms}ms>"

    def _due(self) -> list[TimerTaskEntry[M]]:
        with self._lock:
            return self._queue.advance(self._clock.monotonic_ms(), _BATCH)

    def _expire(self, entry: TimerTaskEntry[M]) -> bool:
        member: Any = entry.task
        with self._lock:
            if entry.state is not EntryState.RUNNING or self._members.get(member) is not entry:
                return False  # it beat, or was removed or replaced meanwhile
            entry.finish()
            del self._members[member]
            self._timeouts.pop(member, None)
            self._expired += 1
        self._on_expired(member)
        return True

    def _return(self, entries: list[TimerTaskEntry[M]]) -> None:
        """Let the members of `entries`, which `_due` has returned, wait again if they have not expired."""
        with self._lock:
            for entry in entries:
                if entry.state is EntryState.RUNNING and self._members.get(entry.task) is entry:  # type: ignore[arg-type]
                    entry.reschedule(entry.deadline_ms)

    def _forget(self, member: M) -> bool:
        entry = self._members.pop(member, None)
        if entry is None:
            return False
        entry.cancel()
        self._timeouts.pop(member, None)
        return True

    def _rearm(self, deadline_ms: int | None) -> None:
        """Set the timer to `deadline_ms`, unless it is set to an earlier time. The caller holds the lock."""
        if self._timer is None or deadline_ms is None or deadline_ms >= self._alarm_ms:
            return
        self._drop_alarm()
        self._alarm = self._timer.schedule(max(0, deadline_ms - self._clock.monotonic_ms()), self.run_due)
        self._alarm_ms = deadline_ms

    def _drop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_ms = None, math.inf


def _timeout(timeout_ms: Any) -> int:
    if type(timeout_ms) is not int or timeout_ms < 1:
        raise ConfigError(f"expected timeout_ms to be an int of at least 1 (milliseconds), got: {timeout_ms!r}")
    return timeout_ms
