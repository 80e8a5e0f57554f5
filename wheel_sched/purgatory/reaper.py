"""The reaper: a deadline queue, and a thread that expires operations.

It is Kafka's `ExpiredOperationReaper` without its purge. A purgatory schedules and cancels a timer for every
request, so the reaper does only this, at little cost. It has no keys, recurrence, contexts or executor. For these, give
the purgatory a `SystemTimer`. The reaper sleeps until the earliest deadline; only an earlier deadline wakes it.

Threads: any thread may schedule and cancel. If each call on the queue is atomic (`DeadlineQueue.any_thread`), threads
add and remove entries without a lock; otherwise they hold the reaper's lock. Callbacks run in the reaper's thread, one
after the other, under no lock. The first `schedule` starts the thread. The thread is a daemon: waiting callbacks are
lost when the program ends. A child made by `fork` must make a new reaper.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory.operation import Lock
from wheel_sched.timers.queue import NS_PER_MS, DeadlineQueue
from wheel_sched.wheel import TimerTaskEntry

logger = logger_of("wheel_sched.purgatory")

Callback = Callable[[], object]

_BATCH = 256  # how many due callbacks leave the queue at once; the others can still be cancelled
_AWAKE: Final = -1  # the value of `_sleeps_until` while the reaper is awake


class Handle(Protocol):
    """A callback that waits in a timer."""

    def cancel(self) -> object:
        """Drop the callback. Each thread that may use the timer may call this. A due callback may run nevertheless."""
        ...

    @property
    def deadline_ms(self) -> int:
        """When the callback is (or was) due, in monotonic ms of the timer's clock."""
        ...


class Timer(Protocol):
    """The timer of a purgatory, such as `SystemTimer`, `AsyncTimer` or `Reaper`.

    A timer calls callbacks under no lock, and never within `schedule`.
    """

    def schedule(self, delay_ms: int, callback: Callable[[], object], /) -> Handle:
        """Call `callback` once, not before `delay_ms` have passed."""
        ...


class Reaper:
    """Runs callbacks after a delay, never early.

    Args:
        tick_ms: deadlines round up to it. Defaults to 1.
        wheel_size: see `wheel_sched.wheel.TimingWheel`. Defaults to 4096.
        on_error: called with (callback, error) when a callback has raised. Defaults to a line in the log
            `wheel_sched.purgatory`.
        clock: monotonic time and waiting. Defaults to the machine's.

    Raises:
        ConfigError: lists all wrong arguments.
    """

    def __init__(
        self,
        tick_ms: int = 1,
        wheel_size: int = 4096,
        *,
        on_error: Callable[[Callback, Exception], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._now_ns = self._clock.monotonic_ns
        self._queue: DeadlineQueue[Callback] = DeadlineQueue(
            self._clock.monotonic_ms(), tick_ms=tick_ms, wheel_size=wheel_size
        )
        self._insert = self._queue.schedule if self._queue.any_thread else self._insert_locked
        # Reentrant: a finalizer may cancel while its thread works on the queue.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._on_error = on_error or _log
        self._sleeps_until: float = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False
        self._sleeps = 0

    def schedule(self, delay_ms: int, callback: Callback) -> Any:
        """Call `callback` once, not before `delay_ms` have passed. Returns a handle that can cancel it until it is due.

        Raises:
            Rejected: the reaper is closed, or the delay is not an int; nothing was scheduled.
            RuntimeError: the thread cannot be started; nothing was scheduled.
        """
        if self._closed:
            raise Rejected("the reaper is closed; nothing was scheduled")
        deadline_ms = delay_ms - (-self._now_ns() // NS_PER_MS)  # rounded up; inline, because each request comes here
        handle = self._insert(callback, deadline_ms)
        if self._closed:  # if `close` has cleared the queue already, nobody calls the callback
            handle.cancel()
            raise Rejected("the reaper is closed; nothing was scheduled")
        # The reaper writes `_sleeps_until` before its last look at the queue. So either the reaper sees this entry, or
        # this thread sees that the reaper sleeps.
        if deadline_ms < self._sleeps_until:
            try:
                self._wake(deadline_ms)
            except RuntimeError:  # the system cannot start another thread
                handle.cancel()
                raise
        return handle

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def sleeps(self) -> int:
        """How often the reaper has fallen asleep."""
        return self._sleeps

    def close(self) -> None:
        """Stop, and drop waiting callbacks. Idempotent.

        Waits for a running callback, unless this callback calls `close`.
        """
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Reaper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Reaper{' closed' if self._closed else ''} pending={len(self)}>"

    def _insert_locked(self, callback: Callback, deadline_ms: int) -> _LockedHandle:
        handle = _LockedHandle()
        handle._lock = lock = self._lock
        lock.acquire()
        try:
            handle._entry = self._queue.schedule(callback, deadline_ms)
        finally:
            lock.release()
        return handle

    def _wake(self, deadline_ms: int) -> None:
        with self._lock:
            if self._closed or deadline_ms >= self._sleeps_until:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._reap, name="wheel-sched-expirations", daemon=True)
                thread.start()
                self._thread = thread
            else:
                self._changed.notify_all()
            self._sleeps_until = _AWAKE

    def _reap(self) -> None:
        while not self._closed:
            if not self._call_due():
                self._sleep()

    def _call_due(self) -> bool:
        """Run the due callbacks. Returns False if none was due.

        This is a function of its own, so that its local variables keep no callback alive while the reaper sleeps.
        """
        with self._lock:
            due = self._queue.take(self._clock.monotonic_ms(), _BATCH)
        for callback in due:
            if not self._closed:
                try:
                    callback()
                except BaseException as error:  # also SystemExit: this thread must stay for all other operations
                    self._report(callback, error)
        return bool(due)

    def _report(self, callback: Callback, error: BaseException) -> None:
        try:
            if isinstance(error, Exception):
                self._on_error(callback, error)
            else:
                _log(callback, error)
        except BaseException:
            logger.exception("purgatory.on_error_failed: for %r and %r", callback, error)

    def _sleep(self) -> None:
        with self._lock:
            self._sleeps_until = math.inf  # from here on `schedule` wakes the reaper, and waits for the lock
            next_ms = self._queue.next_ms()
            if self._closed:
                return
            left_ms = None
            if next_ms is not None:
                self._sleeps_until = next_ms
                left_ms = next_ms - self._now_ns() / NS_PER_MS
            if left_ms is None or left_ms > 0:
                self._sleeps += 1
                self._clock.wait(self._changed, left_ms)
            self._sleeps_until = _AWAKE


class _LockedHandle:
    """A handle whose `cancel` holds the reaper's lock. It is needed if calls on the queue are not atomic."""

    __slots__ = ("_entry", "_lock")

    _entry: TimerTaskEntry[Callback]
    _lock: Lock

    @property
    def deadline_ms(self) -> int:
        return self._entry.deadline_ms

    def cancel(self) -> object:
        lock = self._lock
        lock.acquire()
        try:
            return self._entry.cancel()
        finally:
            lock.release()


def _log(callback: Callback, error: BaseException) -> None:
    logger.error("purgatory.callback_failed: %r", callback, exc_info=error)
