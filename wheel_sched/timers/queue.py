"""The deadline queue: tasks wait until their deadline has come. All timers of this project use it.

    queue = DeadlineQueue(now_ms)
    entry = queue.schedule(task, deadline_ms)   # also: entry.cancel(), entry.touch(later_ms), entry.reschedule(ms)
    for task in queue.take(now_ms): ...         # then sleep until queue.next_ms()

The queue is sans-I/O: it has no clock, thread or lock, and `now` is an argument. It adds three things to the timing
wheel: it hands out tasks instead of entries, it follows a clock that was set back, and it can restart at another time.

Cost: `schedule`, `advance` and `next_ms` are the wheel's own bound methods, so the queue adds no call to them.

Threads: one owner makes all calls. Where `any_thread` is true, each call is atomic, and any thread may make it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from wheel_sched.errors import Rejected
from wheel_sched.wheel import TimerTaskEntry, TimingWheel

T = TypeVar("T")

NS_PER_MS: Final = 1_000_000


class DeadlineQueue(Generic[T]):
    """Holds tasks until their deadlines, in whole milliseconds of one clock.

    Args:
        now_ms: the clock's reading. Defaults to 0. A reading below 0 counts as 0.
        tick_ms: length of a tick; each deadline is rounded up to a whole tick. Defaults to 1.
        wheel_size: see `TimingWheel`. Defaults to 4096.

    Attributes:
        schedule: `schedule(task, deadline_ms)` adds a task and returns its entry. A caller may keep this bound method
            until the next call of `follow` or `restart`, which replace the method.
        advance: `advance(now_ms, limit)` hands out the due entries by deadline, first come first served inside a tick.
        next_ms: `next_ms()` returns exactly when `advance` hands out the next task; None when no task waits.
        count: `count()` returns how many tasks wait. It is faster than `len`.
        new_entry: `new_entry(task)` makes an entry that waits only after a call of its `reschedule`. The attribute is
            None when the queue's property `any_thread` is false.

    Raises:
        ConfigError: with all problems of the arguments.
    """

    __slots__ = ("_shape", "_wheel", "advance", "count", "new_entry", "next_ms", "schedule")

    schedule: Callable[[T, int], TimerTaskEntry[T]]
    advance: Callable[..., list[TimerTaskEntry[T]]]
    next_ms: Callable[[], int | None]
    count: Callable[[], int]
    new_entry: Callable[[T], TimerTaskEntry[T]] | None

    def __init__(self, now_ms: int = 0, *, tick_ms: int = 1, wheel_size: int = 4096) -> None:
        self._shape = {"tick_ms": tick_ms, "wheel_size": wheel_size}
        self.restart(now_ms)

    def __len__(self) -> int:
        return self.count()

    @property
    def now_ms(self) -> int:
        """The time up to which tasks were handed out."""
        return self._wheel.now_ms

    @property
    def levels(self) -> tuple[int, ...]:
        """The number of waiting tasks on each level of the wheel, lowest first. A call may cost O(tasks)."""
        return self._wheel.counters.levels

    @property
    def any_thread(self) -> bool:
        """Whether each call is atomic. Then any thread may make calls, and a finalizer may even interrupt a call."""
        return self._wheel.any_thread

    def take(self, now_ms: int, limit: int | None = None) -> list[T]:
        """Remove and return the tasks that are due at `now_ms`, at most `limit`.

        When fewer tasks than `limit` come back, no other task is due.
        """
        # `cancel` has no effect on an entry that was handed out, so each one has its task.
        return [entry.task for entry in self.advance(now_ms, limit)]  # type: ignore[misc]

    def follow(self, now_ms: int) -> list[TimerTaskEntry[T]]:
        """Set the queue back to `now_ms` when its clock was set back.

        A task is then due when the clock shows its deadline again. Returns the new entries of all waiting tasks, or an
        empty list when `now_ms` is not before the queue's time.
        """
        if now_ms >= self._wheel.now_ms:
            return []
        waiting = self._wheel.snapshot()
        self.restart(now_ms)
        return self._wheel.restore(waiting)

    def restart(self, now_ms: int) -> None:
        """Forget all waiting tasks, and restart at `now_ms`."""
        self._wheel: TimingWheel[T] = TimingWheel(max(now_ms, 0), **self._shape)
        self.schedule = self._wheel.schedule
        self.advance = self._wheel.advance
        self.next_ms = self._wheel.next_expiry
        self.count = self._wheel.__len__
        self.new_entry = self._wheel.entry if self._wheel.any_thread else None

    def waiting(self) -> list[T]:
        """All waiting tasks, in the order in which the queue would hand them out."""
        return [task for _, task in self._wheel.snapshot()]

    def clear(self) -> list[T]:
        """Cancel and return all waiting tasks, in the order in which the queue would have handed them out."""
        return [task for _, task in self._wheel.clear()]

    def __repr__(self) -> str:
        next_ms = self.next_ms()
        due = "none" if next_ms is None else f"{next_ms - self.now_ms:+}ms"
        return f"<DeadlineQueue pending={len(self)} now={self.now_ms}ms next={due}>"


def deadline_after(now_ns: int, delay_ms: Any) -> int:
    """The first whole ms that is not before `now_ns` + `delay_ms`. A delay below 0 counts as 0.

    Args:
        now_ns: a clock's reading, in nanoseconds.
        delay_ms: an int of any size (not a bool), an object with `__index__`, or a finite float.

    Raises:
        Rejected: `delay_ms` is none of these.
    """
    if type(delay_ms) is int:
        return (delay_ms if delay_ms > 0 else 0) - (-now_ns // NS_PER_MS)
    if isinstance(delay_ms, float) and math.isfinite(delay_ms):
        whole_ms = math.floor(delay_ms)  # apart: the product of a huge float and 1e6 would overflow
        delay_ns = whole_ms * NS_PER_MS + math.ceil((delay_ms - whole_ms) * NS_PER_MS)
        return -(-(now_ns + max(delay_ns, 0)) // NS_PER_MS)
    if not isinstance(delay_ms, bool | float):
        try:
            return deadline_after(now_ns, operator.index(delay_ms))
        except TypeError:
            pass
    raise Rejected(f"expected delay_ms to be a finite number (milliseconds), got: {delay_ms!r}; nothing was changed")
