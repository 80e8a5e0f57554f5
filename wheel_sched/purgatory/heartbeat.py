"""Heartbeats: members that expire when they have not been heard of for their session timeout.

Kafka's session timeouts of a consumer group, without an operation per heartbeat: a member has one entry in a timing
wheel, and a beat is the wheel's `touch`, which only writes the later deadline down. An entry moves once per timeout,
however often its member beats. Expiry runs once per membership: a member that beats, is removed or is replaced before
its `on_expired` has begun does not expire.

Cost: a beat is a dict look-up and two attribute writes under a lock; a member is a dict entry and a wheel entry.

Threads: any. `on_expired` runs under no lock, in the timer's thread, or in that of whoever calls `run_due`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.errors import ConfigError
from wheel_sched.purgatory.timing import Handle, Timer
from wheel_sched.wheel import EntryState, TimerTaskEntry, TimingWheel

M = TypeVar("M", bound=Hashable)

_MS = 1_000_000
_BATCH = 256


class HeartbeatMonitor(Generic[M]):
    """Who is alive.

    Args:
        timeout_ms: how long a member may be silent, unless it was given a timeout of its own.
        on_expired: called with each member that was silent for too long; it is no member any more then.
        timer: what the monitor is driven by, the same for any number of monitors; None: by its owner, who calls
            `run_due` at `next_ms`. Defaults to None.
        clock: the timer's. Defaults to the machine's.
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
        self._wheel: TimingWheel[M] = TimingWheel(self._clock.monotonic_ms(), tick_ms=tick_ms)
        self._members: dict[M, TimerTaskEntry[M]] = {}
        self._timeouts: dict[M, int] = {}  # of members that have one of their own
        self._alarm: Handle | None = None
        self._alarm_ms = 0
        self._expired = 0

    def add(self, member: M, timeout_ms: int | None = None) -> None:
        """Take a member in, heard of just now; one that is in already is replaced.

        Raises:
            ConfigError: `timeout_ms` is not an int of at least 1; nothing was changed.
            Rejected: the timer is closed; the member is none.
        """
        own_ms = None if timeout_ms is None else _timeout(timeout_ms)
        with self._lock:
            self._forget(member)
            if own_ms is not None:
                self._timeouts[member] = own_ms
            deadline_ms = (own_ms or self.timeout_ms) - (-self._now_ns() // _MS)
            self._members[member] = self._wheel.schedule(member, deadline_ms)
            try:
                self._rearm(deadline_ms)
            except BaseException:
                self._forget(member)
                raise

    def beat(self, member: M) -> bool:
        """The member was heard of; False when it is none (any more)."""
        lock = self._lock
        lock.acquire()  # not `with`, which costs as much as the rest
        try:
            entry = self._members.get(member)
            if entry is None:
                return False
            timeout_ms = self._timeouts.get(member, self.timeout_ms) if self._timeouts else self.timeout_ms
            deadline_ms = timeout_ms - (-self._now_ns() // _MS)  # rounded up
            if not entry.touch(deadline_ms):  # handed out, and its expiry has not begun
                entry.reschedule(deadline_ms)
                self._rearm(deadline_ms)
            return True
        finally:
            lock.release()

    def remove(self, member: M) -> bool:
        """Let a member go without expiry; False when it is none (any more)."""
        with self._lock:
            return self._forget(member)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __len__(self) -> int:
        return len(self._members)

    @property
    def expired(self) -> int:
        """How many members have expired."""
        return self._expired

    def next_ms(self) -> int | None:
        """When the next member expires if it is not heard of, by the clock's monotonic ms; None without members."""
        with self._lock:
            return self._wheel.next_expiry()

    def run_due(self) -> int:
        """Expire whose time has come; how many. What `on_expired` raises comes out of it, and the rest stays due."""
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
                self._alarm = None
                self._rearm(self._wheel.next_expiry())
        return count

    def close(self) -> list[M]:
        """Let all members go without expiry; answers them. The monitor may be used again."""
        with self._lock:
            members = list(self._members)
            self._members.clear()
            self._timeouts.clear()
            self._wheel.clear()
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
            return members

    def __repr__(self) -> str:
        return f"<HeartbeatMonitor members={len(self)} expired={self._expired} timeout={self.timeout_ms}ms>"

    def _due(self) -> list[TimerTaskEntry[M]]:
        with self._lock:
            return self._wheel.advance(self._clock.monotonic_ms(), _BATCH)

    def _expire(self, entry: TimerTaskEntry[M]) -> bool:
        member: Any = entry.task
        with self._lock:
            if entry.state is not EntryState.RUNNING or self._members.get(member) is not entry:
                return False  # it beat, was removed or was replaced meanwhile
            entry.finish()
            del self._members[member]
            self._timeouts.pop(member, None)
            self._expired += 1
        self._on_expired(member)
        return True

    def _return(self, entries: list[TimerTaskEntry[M]]) -> None:
        """Put back what was handed out and not expired."""
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
        """Have the timer call at `deadline_ms`, unless it calls before; under the lock."""
        if self._timer is None or deadline_ms is None or (self._alarm is not None and self._alarm_ms <= deadline_ms):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = deadline_ms
        self._alarm = self._timer.schedule(max(0, deadline_ms - self._clock.monotonic_ms()), self.run_due)


def _timeout(timeout_ms: Any) -> int:
    if type(timeout_ms) is not int or timeout_ms < 1:
        raise ConfigError(f"expected timeout_ms to be an int of at least 1 (milliseconds), got: {timeout_ms!r}")
    return timeout_ms
