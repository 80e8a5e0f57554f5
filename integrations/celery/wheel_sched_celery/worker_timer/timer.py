"""`WheelTimer`: kombu's timer over a deadline queue, for the event loop of a Celery worker.

It replaces `kombu.asynchronous.timer.Timer`: it has the same methods, the same iterator and the same order (eta, then
priority, then the order of entering). Three things differ:

- A cancelled entry leaves the queue at once, and its memory is freed. With kombu it stays in the heap until it is due.
- The hub gets all due entries as one batch entry. In each turn the hub calls ten entries, and then polls for up to a
  second. With one entry per task, that limits the solo pool to some twenty tasks a second.
- A batch ends after `SLICE_S`, so that the hub can serve its sockets, and asks the hub for another turn at once.

Invariant: nothing runs before its eta. The queue counts milliseconds of the monotonic clock. An eta is rounded up, and
the present time is rounded down. If an entry raises an error, the hub gets it, as it would without a batch. The other
entries run in the next turn.

Threads: any thread may add, cancel and list entries. Entries run in the thread that iterates, never under the lock.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Final

from kombu.asynchronous.timer import Entry as KombuEntry
from kombu.asynchronous.timer import Timer, scheduled

from wheel_sched.timers.queue import DeadlineQueue
from wheel_sched.wheel import TimerTaskEntry

SLICE_S: Final = 0.005  # how long entries run between two looks at the sockets
BATCH: Final = 500  # entries taken from the queue at once
TURN: Final = 9  # entries between two waits; after its tenth entry the hub ignores the wait
AT_ONCE_S: Final = 1e-6  # for the hub a wait of 0 means "nothing waits", and it polls for a second
FAR_MS: Final = 1 << 53  # 285,000 years, for an eta that no clock reaches; floats are exact up to here


class WheelEntry(KombuEntry):
    """An `Entry` of kombu. Its `cancel` also removes it from the deadline queue.

    Args:
        once: whether the entry runs only once, and then drops its arguments. An entry that keeps them forms a cycle
            with its request in Celery 5.7. Only the garbage collector frees such cycles, and stops a worker for 0.1 s
            every few thousand tasks. Defaults to False.
    """

    __slots__ = ("once", "place", "timer")

    def __init__(self, fun: Callable[..., Any], args: Any = None, kwargs: Any = None, *, once: bool = False) -> None:
        super().__init__(fun, args, kwargs)
        self.once = once
        self.timer: WheelTimer | None = None
        self.place: TimerTaskEntry[Any] | None = None

    def __call__(self) -> Any:
        me: Any = self  # kombu's attributes have no types
        args, kwargs = me.args, me.kwargs
        if self.once:
            me.args, me.kwargs = (), {}
        return me.fun(*args, **kwargs)

    def cancel(self) -> None:
        """Remove the entry from the queue, so that it never runs again. Idempotent. Any thread may call it."""
        super().cancel()
        if self.timer is not None:
            self.timer.discard(self)


class _Waiting:
    """The object that the hub reads as `timer._queue`. It is true while any entry waits."""

    __slots__ = ("_timer",)

    def __init__(self, timer: WheelTimer) -> None:
        self._timer = timer

    def __len__(self) -> int:
        return len(self._timer)


class WheelTimer(Timer):
    """kombu's `Timer` over a deadline queue.

    Args:
        max_interval: the longest wait the iterator asks for, in seconds. Defaults to kombu's 2.
        on_error: called with the error that an entry raised in `apply_entry`. Defaults to None: log the error.
        slice_s: how long a batch may run before the hub looks at its sockets. Defaults to `SLICE_S`.
        clock: returns the seconds of a clock that never goes back. Defaults to `time.monotonic`.
    """

    Entry = WheelEntry

    def __init__(
        self,
        max_interval: float | None = None,
        on_error: Callable[[Exception], None] | None = None,
        *,
        slice_s: float = SLICE_S,
        clock: Callable[[], float] = monotonic,
        **_: Any,
    ) -> None:
        super().__init__(max_interval=max_interval, on_error=on_error)
        self._clock = clock
        self._slice_s = slice_s
        self._lock = threading.RLock()  # reentrant: a finalizer or a signal handler may cancel in the middle of a call
        self._deadlines: DeadlineQueue[scheduled] = DeadlineQueue(_floor_ms(clock()))
        self._ready: deque[scheduled] = deque()  # due, taken from the queue, not yet run
        self._queue = _Waiting(self)
        self._batch = WheelEntry(self._run_ready)

    def enter_at(
        self, entry: KombuEntry, eta: Any = None, priority: int | None = 0, time: Callable[[], float] | None = None
    ) -> KombuEntry:
        """Run `entry` at `eta`, in seconds of the monotonic clock or as a datetime; None is now."""
        if eta is None:
            eta = (time or self._clock)()
        return super().enter_at(entry, eta, 0 if priority is None else priority)

    def enter_after(
        self, secs: float, entry: KombuEntry, priority: int | None = 0, time: Callable[[], float] | None = None
    ) -> KombuEntry:
        """Run `entry` in `secs` seconds."""
        return self.enter_at(entry, (time or self._clock)() + float(secs), priority)

    def call_at(
        self, eta: Any, fun: Callable[..., Any], args: Any = (), kwargs: Any = None, priority: int | None = 0
    ) -> KombuEntry:
        """Run `fun` at `eta`, see `enter_at`."""
        return self.enter_at(self.Entry(fun, args, kwargs, once=True), eta, priority)

    def call_after(
        self, secs: float, fun: Callable[..., Any], args: Any = (), kwargs: Any = None, priority: int | None = 0
    ) -> KombuEntry:
        """Run `fun` in `secs` seconds."""
        return self.enter_after(secs, self.Entry(fun, args, kwargs, once=True), priority)

    def _enter(self, eta: float, priority: int, entry: KombuEntry, **_: Any) -> KombuEntry:
        # An eta that has passed is due at once, and not with the next millisecond.
        deadline_ms = 0 if eta <= self._clock() else _deadline_ms(eta)
        with self._lock:
            if not self._deadlines.count():
                self._deadlines.advance(self._now_ms())  # the time of an idle queue stands still: bring it to now
            place = self._deadlines.schedule(scheduled(eta, priority, entry), deadline_ms)
            if isinstance(entry, WheelEntry):
                entry.timer = self
                entry.place = place
        return entry

    def discard(self, entry: WheelEntry) -> None:
        """Remove an entry from the queue, if it is there."""
        with self._lock:
            place, entry.place = entry.place, None
            if place is not None:
                place.cancel()

    def cancel(self, tref: Any) -> None:
        """Never run the entry `tref` again."""
        tref.cancel()

    def clear(self) -> None:
        """Forget all waiting entries."""
        with self._lock:
            self._ready.clear()
            self._deadlines.clear()

    def adopt(self, other: Any) -> int:
        """Move all waiting entries of another kombu timer to this one, in their order, except cancelled ones.

        Returns their number, with the cancelled ones.
        """
        waiting = sorted(other.queue, key=_order)
        other.clear()
        for eta, priority, entry in waiting:
            if not entry.canceled:
                self._enter(eta, priority or 0, entry)
        return len(waiting)

    def __iter__(self) -> Iterator[tuple[float | None, KombuEntry | None]]:
        """Tell the hub what to do next, for ever.

        Each step yields one of these pairs. (None, entry): run this entry now. (seconds, None): wait so long.
        (None, None): nothing waits. After a wait, the next step begins a new slice of time.
        """
        while True:
            ends = self._clock() + self._slice_s
            for _ in range(TURN):
                entry = self.next_due()
                if entry is None:
                    break
                yield None, entry
                if self._clock() >= ends:
                    break
            yield self.wait_s(), None

    def __len__(self) -> int:
        return self._deadlines.count() + len(self._ready)

    @property
    def queue(self) -> list[Any]:
        """All waiting entries as (eta, priority, entry), in the order in which they will run."""
        with self._lock:
            waiting = [*self._ready, *self._deadlines.waiting()]
        return sorted((each for each in waiting if not each.entry.canceled), key=_order)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} pending={len(self)} ready={len(self._ready)} {self._deadlines!r}>"

    def next_due(self, *, batch: bool = True) -> KombuEntry | None:
        """The entry to run now; None when nothing is due. If several entries are due: one entry that runs them all.

        If `batch` is False, this is always a single entry.
        """
        with self._lock:
            ready = self._ready
            self._take()
            while ready and ready[0].entry.canceled:
                ready.popleft()
            if batch and len(ready) > 1:
                return self._batch
            return self._taken(ready.popleft()) if ready else None

    def wait_s(self) -> float | None:
        """Seconds until something is due, at most `max_interval`; None when nothing waits."""
        with self._lock:
            if self._ready:
                return AT_ONCE_S
            next_ms = self._deadlines.next_ms()
        if next_ms is None:
            return None
        longest_s: float = self.max_interval
        return min(max(next_ms / 1000 - self._clock(), AT_ONCE_S), longest_s)

    def _run_ready(self) -> None:
        """Run due entries until the slice of time is over. An entry's error ends this call; other entries stay due."""
        ends = self._clock() + self._slice_s
        while True:
            with self._lock:
                if not self._ready:
                    self._take()
                if not self._ready:
                    return
                entry = self._taken(self._ready.popleft())
            if not entry.canceled:
                entry()
            if self._clock() >= ends:
                return

    def _now_ms(self) -> int:
        return _floor_ms(self._clock())

    def _take(self) -> None:
        """Move a batch of due entries from the queue to `_ready`, if `_ready` is empty. The caller holds the lock."""
        if self._ready or not self._deadlines.count():
            return
        due = self._deadlines.take(self._now_ms(), BATCH)
        if len(due) > 1:
            due.sort(key=_order)
        self._ready.extend(due)

    def _taken(self, task: scheduled) -> KombuEntry:
        """The entry of `task`, which is about to run. Drops the entry's reference to the queue, to leave no cycle."""
        entry = task.entry
        if isinstance(entry, WheelEntry):
            entry.place = None
        return entry


def _order(task: Any) -> tuple[float, int]:
    return task.eta, task.priority or 0


def _floor_ms(seconds: float) -> int:
    """The last whole millisecond that is not after `seconds`. Corrects the rounding error of `seconds * 1000`."""
    now_ms = int(seconds * 1000)
    if now_ms / 1000 > seconds:
        return now_ms - 1
    return now_ms + 1 if (now_ms + 1) / 1000 <= seconds else now_ms


def _deadline_ms(eta: float) -> int:
    """The first whole millisecond that is not before `eta`. Corrects the rounding error of `eta * 1000`.

    For a whole millisecond, this function and `_floor_ms` return the same number.

    NaN is due at once and infinity is never due, as in kombu's heap.
    """
    if math.isnan(eta):
        return 0
    if abs(eta) >= FAR_MS / 1000:
        return FAR_MS if eta > 0 else 0
    deadline_ms = max(math.ceil(eta * 1000), 0)
    if deadline_ms / 1000 < eta:
        return deadline_ms + 1
    return deadline_ms - 1 if deadline_ms and (deadline_ms - 1) / 1000 >= eta else deadline_ms
