"""A stand-in for the standard library's `sched.scheduler`, with a timing wheel inside.

    from wheel_sched.stdlib_sched import scheduler

Same methods, same `sched.Event`s, same order (time, then priority, then first come first served), same errors. What
differs is the cost: the standard library searches all events to cancel one; here that is a look-up. The wheel's slots
are `resolution` units of `timefunc` wide; what shares a slot is sorted exactly before it runs, so that the resolution
changes the speed and nothing else.

Threads: as in the standard library, any may call anything; actions run in the thread that called `run`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from sched import Event
from types import MappingProxyType
from typing import Any

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.wheel import TimerTaskEntry, TimingWheel


class scheduler:  # noqa: N801  # the name it stands in for
    """See `sched.scheduler`.

    Args:
        timefunc: what time is it, in any unit. Defaults to `time.monotonic`.
        delayfunc: let that much time pass; called with 0 after each action. Defaults to `time.sleep`.
        resolution: width of a slot in units of `timefunc`. Defaults to 0.001 (a millisecond, where it counts seconds).

    Raises:
        ConfigError: `resolution` is not a finite number above 0.
    """

    def __init__(
        self,
        timefunc: Callable[[], float] = time.monotonic,
        delayfunc: Callable[[float], object] = time.sleep,
        *,
        resolution: float = 0.001,
    ) -> None:
        if not isinstance(resolution, int | float) or not 0 < resolution < math.inf:
            raise ConfigError(f"expected resolution to be a finite number above 0, got: {resolution!r}")
        self.timefunc = timefunc
        self.delayfunc = delayfunc
        self._resolution = resolution
        self._lock = threading.RLock()
        self._sequence = count()
        # No slot begins after an event in it: those of slots that were handed out stand in `_ready`, a heap.
        self._wheel: TimingWheel[Event] = TimingWheel()
        self._ready: list[Event] = []
        self._entries: dict[int, TimerTaskEntry[Event] | None] = {}  # by sequence; None = in `_ready`

    def enterabs(
        self,
        time: float,
        priority: int,
        action: Callable[..., Any],
        argument: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Event:
        """Run `action(*argument, **kwargs)` at `time`; of what is due at once, the lowest priority comes first.

        Answers an event that `cancel` takes.

        Raises:
            Rejected: `time` is not a finite number; nothing was scheduled.
        """
        with self._lock:
            event = Event(time, priority, next(self._sequence), action, argument, dict(kwargs))
            try:
                slot = math.floor(time / self._resolution)  # begins at or before the event
            except (OverflowError, TypeError, ValueError):  # infinite, no number, NaN
                raise Rejected(f"expected a finite number as time, got: {time!r}; nothing was scheduled") from None
            if slot <= self._wheel.now_ms:
                heappush(self._ready, event)
                self._entries[event.sequence] = None
            else:
                self._entries[event.sequence] = self._wheel.schedule(event, slot)
            return event

    def enter(
        self,
        delay: float,
        priority: int,
        action: Callable[..., Any],
        argument: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Event:
        """As `enterabs`, `delay` from now."""
        return self.enterabs(self.timefunc() + delay, priority, action, argument, kwargs)

    def cancel(self, event: Event) -> None:
        """Take an event out.

        Raises:
            ValueError: it is not (any more) in the queue.
        """
        with self._lock:
            entry = self._entries.get(event.sequence)
            if entry is not None and entry.task is event:
                entry.cancel()
            elif event in self._ready:
                self._ready.remove(event)
                heapify(self._ready)
            else:
                raise ValueError(f"{event!r} is not in the queue; nothing was changed")
            del self._entries[event.sequence]

    def empty(self) -> bool:
        """Whether nothing waits."""
        with self._lock:
            return not self._entries

    def run(self, blocking: bool = True) -> float | None:
        """Run events until none is left; without `blocking`, those that are due, and answer how long until the next.

        An exception of an action comes out of here; its event is gone, the others stay, and `run` may be called again.
        """
        while True:
            with self._lock:
                event = self._head()
                if event is None:
                    return None
                wait = event.time - self.timefunc()
                if wait <= 0:
                    heappop(self._ready)
                    del self._entries[event.sequence]
            if wait > 0:
                if not blocking:
                    return wait
                self.delayfunc(wait)
            else:
                event.action(*event.argument, **event.kwargs)
                self.delayfunc(0)  # let other threads run

    @property
    def queue(self) -> list[Event]:
        """What waits, in the order it would run."""
        with self._lock:
            return sorted([*self._ready, *(event for _, event in self._wheel.snapshot())])

    def _head(self) -> Event | None:
        """The next event, taken from the wheel if need be."""
        if not self._ready:
            slot = self._wheel.next_expiry()
            if slot is None:
                return None
            for entry in self._wheel.advance(slot):
                if entry.task is not None:
                    heappush(self._ready, entry.task)
                    self._entries[entry.task.sequence] = None
        return self._ready[0]
