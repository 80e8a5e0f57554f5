"""The purgatories and timers of this process: their numbers at one moment, as data.

A timer of an event loop is read on its loop, because no other thread may use it. A purgatory is read by the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from wheel_sched.errors import NotDone
from wheel_sched.purgatory import LATENESS_BUCKETS_MS, HeartbeatMonitor, Purgatory
from wheel_sched.timers import AsyncTimer, SystemTimer

T = TypeVar("T")

LOOP_S = 1.0  # how long an event loop may take to answer


@dataclass(frozen=True, slots=True)
class ShownPurgatory:
    """A purgatory at one moment.

    Args:
        name: its name.
        kind: the name of its class.
        numbers: its counters by name, see `PurgatoryStats`. Those of a monitor of heartbeats are `members`, `expired`
            and `next_in_ms` (None without members).
        lateness: expirations by lateness: the inclusive upper bound of each bucket in ms, None for the last one, and
            the count. Empty for a monitor of heartbeats.
        error: why it has no numbers; "" when it has.
    """

    name: str
    kind: str
    numbers: Mapping[str, int | None]
    lateness: Sequence[tuple[int | None, int]] = ()
    error: str = ""

    @property
    def completed(self) -> int:
        """How many operations were completed: by a try, by force or by the timer."""
        return sum(self.numbers.get(name) or 0 for name in ("satisfied", "forced", "expired"))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "numbers": dict(self.numbers),
            "lateness": [{"up_to_ms": bound_ms, "count": count} for bound_ms, count in self.lateness],
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class ShownTimer:
    """A timer at one moment.

    Args:
        name: its name.
        kind: the name of its class.
        numbers: its counters by name, see `TimerStatistics`; also `tick_ms`, and `next_in_ms`: how long until it looks
            for due timers (None: nothing waits).
        levels: waiting timers on each level of the wheel, lowest first.
        closed: whether it is closed. Defaults to False.
        error: why it has no numbers; "" when it has.
    """

    name: str
    kind: str
    numbers: Mapping[str, int | None]
    levels: Sequence[int] = ()
    closed: bool = False
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "numbers": dict(self.numbers),
            "levels": list(self.levels),
            "closed": self.closed,
            "error": self.error,
        }


def shown_purgatories(purgatories: Mapping[str, Any]) -> list[ShownPurgatory]:
    """The numbers of purgatories and heartbeat monitors, by name. For other objects, `error` says what was expected.

    Any thread may call it.
    """
    return [_purgatory(name, one) for name, one in sorted(purgatories.items())]


def shown_timers(timers: Mapping[str, Any]) -> list[ShownTimer]:
    """The numbers of timers, by name. An object that is no timer, or a hanging one, has an `error` instead.

    Any thread may call it. It waits for each event loop, up to a second.
    """
    return [_timer(name, one) for name, one in sorted(timers.items())]


def _purgatory(name: str, one: Any) -> ShownPurgatory:
    kind = type(one).__name__
    if isinstance(one, HeartbeatMonitor):
        due_ms = one.next_ms()
        left_ms = None if due_ms is None else max(0, due_ms - one.clock.monotonic_ms())
        return ShownPurgatory(name, kind, {"members": len(one), "expired": one.expired, "next_in_ms": left_ms})
    if not isinstance(one, Purgatory):
        return ShownPurgatory(name, kind, {}, error=f"expected a Purgatory or a HeartbeatMonitor, got: {kind}")
    stats = one.stats
    names = ("watched", "keys", "delayed", "satisfied", "forced", "expired", "cancelled", "failed")
    numbers = {field: getattr(stats, field) for field in (*names, "lateness_max_ms")}
    bounds: tuple[int | None, ...] = (*LATENESS_BUCKETS_MS, None)
    return ShownPurgatory(name, kind, numbers, tuple(zip(bounds, stats.lateness_counts, strict=True)))


def _timer(name: str, one: Any) -> ShownTimer:
    kind = type(one).__name__
    if isinstance(one, SystemTimer):
        return _read(name, one)
    if not isinstance(one, AsyncTimer):
        return ShownTimer(name, kind, {}, error=f"expected a SystemTimer or an AsyncTimer, got: {kind}")
    try:
        return _on_loop(one.loop, lambda: _read(name, one))
    except NotDone as error:
        return ShownTimer(name, kind, {}, error=str(error))


def _read(name: str, timer: SystemTimer | AsyncTimer) -> ShownTimer:
    stats = timer.statistics
    due_ms = timer.next_ms()
    numbers = {
        "pending": stats.pending,
        "fired": stats.fired,
        "failed": stats.failed,
        "wakeups": stats.wakeups,
        "late": stats.late,
        "late_max_ms": stats.late_max_ms,
        "tick_ms": timer.tick_ms,
        "next_in_ms": None if due_ms is None else max(0, due_ms - timer.clock.monotonic_ms()),
    }
    return ShownTimer(name, type(timer).__name__, numbers, timer.levels(), timer.closed)


def _on_loop(loop: asyncio.AbstractEventLoop, read: Callable[[], T]) -> T:
    """Call a function on the thread of an event loop.

    Raises:
        NotDone: the loop is closed, or does not answer in time.
    """
    with contextlib.suppress(RuntimeError):  # no loop runs in this thread
        if asyncio.get_running_loop() is loop:
            return read()
    answer = Future[T]()

    def call() -> None:
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(read())
            except BaseException as error:
                answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError as error:
        raise NotDone("its event loop is closed") from error
    try:
        return answer.result(LOOP_S)
    except TimeoutError as error:
        answer.cancel()
        raise NotDone(f"its event loop did not answer within {LOOP_S:g} s: it does not run, or is held up") from error
