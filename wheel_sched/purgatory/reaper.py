"""The reaper: a wheel of operations that wait for their time, and the thread that expires them.

Kafka's `ExpiredOperationReaper`, less its purge. A purgatory schedules and cancels with every request, so this timer
has nothing but that: no keys, recurrence, contexts or executor; who wants those hands a `SystemTimer` in. It sleeps
until the earliest deadline, and is woken only for what is due before that.

Threads: any thread may schedule and cancel. The compiled wheel is called directly (a call of it is one step under the
GIL); the pure one under a lock. Callbacks run in the reaper's thread, one after the other, under no lock. The thread
comes with the first timer and is a daemon: close the reaper, or what waits is lost when the program ends. It does not
survive a fork: a child makes its own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Final

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory.operation import Lock
from wheel_sched.wheel import CORE, TimerTaskEntry, TimingWheel

logger = logger_of("wheel_sched.purgatory")

Callback = Callable[[], object]

_BATCH = 256  # how many due callbacks are taken out of the wheel at once, so that they can still be cancelled
_AWAKE = -1  # in place of the moment until which the reaper sleeps: it need not be woken

_MS: Final = 1_000_000


class Reaper:
    """Calls back after a delay, never early.

    Args:
        tick_ms: deadlines round up to it. Defaults to 1.
        wheel_size: slots per level of the wheel, a power of two. Defaults to 4096.
        on_error: told of (callback, error) when a callback raised. Defaults to a line in the log
            `wheel_sched.purgatory`.
        clock: where time comes from. Defaults to the machine's.

    Raises:
        ConfigError: all that is wrong with the arguments.
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
        self._wheel: TimingWheel[Callback] = TimingWheel(
            self._clock.monotonic_ms(), tick_ms=tick_ms, wheel_size=wheel_size
        )
        self._insert = self._wheel.schedule if CORE == "compiled" else self._insert_locked
        # Reentrant, for a finalizer may cancel while its own thread is at work on the wheel.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._on_error = on_error or _log
        self._sleeps_until: float = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False
        self._sleeps = 0

    def schedule(self, delay_ms: int, callback: Callback) -> Any:
        """Have `callback` called once, not before `delay_ms` have passed; the handle to cancel it.

        Raises:
            Rejected: the reaper is closed, or the delay is not an int; nothing was scheduled.
            RuntimeError: the thread cannot be started; nothing was scheduled.
        """
        if self._closed:
            raise Rejected("the reaper is closed; nothing was scheduled")
        deadline_ms = delay_ms - (-self._now_ns() // _MS)  # rounded up
        handle = self._insert(callback, deadline_ms)
        # The reaper writes down until when it sleeps before it looks at the wheel for the last time, so one of the two
        # sees the other.
        if deadline_ms < self._sleeps_until:
            try:
                self._wake(deadline_ms)
            except RuntimeError:  # the system has no thread for us
                handle.cancel()
                raise
        return handle

    def __len__(self) -> int:
        return len(self._wheel)

    @property
    def sleeps(self) -> int:
        """How often the reaper has gone to sleep."""
        return self._sleeps

    def close(self) -> None:
        """Stop; what waits is never called. Waits for a callback that runs, unless called by it. Idempotent."""
        with self._lock:
            self._closed = True
            self._wheel.clear()
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
            handle._entry = self._wheel.schedule(callback, deadline_ms)
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
        """Call what is due, if anything is. A frame of its own, so that a sleeping reaper keeps nothing of it alive."""
        with self._lock:
            due = self._wheel.advance(self._clock.monotonic_ms(), _BATCH)
        for entry in due:
            callback = entry.task
            entry.finish()
            if callback is not None and not self._closed:
                try:
                    callback()
                except BaseException as error:  # also what would end the thread, for which all others wait
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
            self._sleeps_until = math.inf  # from here on whoever schedules comes to wake, and waits for the lock
            next_ms = self._wheel.next_expiry()
            if self._closed:
                return
            left_ms = None
            if next_ms is not None:
                self._sleeps_until = next_ms
                left_ms = next_ms - self._now_ns() / _MS
            if left_ms is None or left_ms > 0:
                self._sleeps += 1
                self._clock.wait(self._changed, left_ms)
            self._sleeps_until = _AWAKE


class _LockedHandle:
    """An entry of the pure wheel, which one thread at a time may touch."""

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
