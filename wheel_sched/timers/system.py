"""Timers on threads: Kafka's `SystemTimer` with its reaper, over the timing wheel.

    with SystemTimer() as timer:
        handle = timer.schedule(200, print, "200 ms later")

One thread, the reaper, sleeps until the earliest deadline and gives due timers to the executor. A new timer wakes the
reaper only when it is due earlier, or when the inbox has over 4,096 timers. An idle timer causes no wake-ups, except
one a second while a timer waits for a time of the wall clock. An unused timer has no thread.

Threads: any thread may call any method, also from a callback. Without a key and without `max_pending`, `schedule` takes
the lock only to wake the reaper. With the compiled core it calls the wheel directly; each call is atomic under the GIL.
With the pure core it appends to the inbox, which the reaper empties. Callbacks run without a lock.

Processes: a child made by `fork` has none of its parent's threads, and a lock that another thread held stays locked in
the child. So the child starts with an empty timer and new locks, and pending timers fire in the parent. When the
interpreter ends, it stops daemon threads in the middle of their work, so each timer ends its reaper before that.

Source: `org.apache.kafka.server.util.timer.SystemTimer` and `SystemTimerReaper`.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # exit hooks run in reverse: its hook, which ends pools, runs after ours
import math
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Literal, Self

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.errors import ConfigError
from wheel_sched.escaping import logger_of
from wheel_sched.timers.facade import AWAKE, TimerFacade
from wheel_sched.timers.handle import PendingTimer, TimerHandle
from wheel_sched.timers.queue import NS_PER_MS
from wheel_sched.timers.registry import TimerRegistry
from wheel_sched.wheel import EntryState

logger = logger_of("wheel_sched.timers")

BATCH = 256  # how many due timers one look takes; then other threads can get the lock
LONGEST_SLEEP_MS = 1 << 45  # a thousand years; a float still counts its milliseconds
AT_EXIT_SECONDS = 1.0  # how long a callback may still run when the interpreter ends


class _ThisThread(threading.local):
    """The handles whose callbacks this thread is running, the innermost last."""

    def __init__(self) -> None:
        self.running: list[TimerHandle] = []


class SystemTimer(TimerFacade):
    """Callbacks after a delay, at a time, or again and again, on threads.

    Args:
        tick_ms: length of a tick; each deadline is rounded up to a whole tick. Defaults to 1.
        wheel_size: see `wheel_sched.wheel.TimingWheel`. Defaults to 4096.
        executor: calls the callbacks. "inline": the reaper itself, where a slow callback delays all others. "threads":
            a thread pool of this timer. Or an executor of yours, which `close` does not shut down. Defaults to
            "inline".
        max_pending: while so many timers wait, a new one is rejected, unless it replaces one. Defaults to None (no
            limit).
        on_error: called with the handle and the exception when a callback has raised, or when your executor has refused
            it, which cancels the timer. Defaults to None: the error is logged with its traceback.
        clock: monotonic and wall time. Defaults to the machine's.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        tick_ms: int = 1,
        wheel_size: int = 4096,
        *,
        executor: Literal["inline", "threads"] | Executor = "inline",
        max_pending: int | None = None,
        on_error: Callable[[TimerHandle, BaseException], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if executor not in ("inline", "threads") and not isinstance(executor, Executor):
            raise ConfigError(f"expected executor to be 'inline', 'threads' or an Executor, got: {executor!r}")
        self._executor = executor
        self._reset()
        super().__init__(
            SystemClock() if clock is None else clock,
            self._guard,
            tick_ms=tick_ms,
            wheel_size=wheel_size,
            max_pending=max_pending,
            on_error=on_error,
        )
        _living.add(self)

    def cancel_and_wait(self, handle: TimerHandle, timeout_s: float | None = None) -> EntryState:
        """Cancel a timer. If its callback runs, wait until it has ended, at most `timeout_s` seconds of real time.

        A callback that calls this for its own handle does not wait. Returns the new state. RUNNING: the callback has
        not ended, because the callback itself made this call or the time is over.
        """
        state = handle.cancel()
        if not handle._runs or handle in self._this_thread.running:  # a running timer may have been rescheduled
            return state
        with self._guard:
            self._ended.wait_for(lambda: not handle._runs, timeout_s)
            return handle.state

    def close(self) -> list[PendingTimer]:
        """Stop. Cancels all waiting timers and returns them in order of their deadlines. Idempotent.

        Waits for running callbacks, unless one of them calls this, or an executor of yours runs them. Afterwards
        `schedule` raises `Rejected`, and `touch` and `reschedule` return False.
        """
        with self._guard:
            pending = [] if self._registry.closed else self._registry.close()
            thread = self._thread
            self._changed.notify_all()
        inside = bool(self._this_thread.running)
        if thread is not None and thread is not threading.current_thread() and not inside:
            thread.join()
        if self._pool is not None:
            self._pool.shutdown(wait=not inside)
        return pending

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reset(self) -> None:
        """Set the state before the first use: no thread, and locks that no thread holds."""
        # Reentrant: a finalizer may cancel a timer while its thread works on a queue.
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)  # wakes the reaper
        self._ended = threading.Condition(self._guard)  # a callback has ended
        self._this_thread = _ThisThread()
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._sleeps_until = math.inf

    def _after_fork_in_child(self) -> None:
        """Restart empty: the reaper, the owner of the lock and the pending timers are in the parent."""
        before = self._registry
        self._reset()
        before.left_in_parent, before.lock = True, self._guard
        self._lock = self._guard
        self._registry = self._new_registry()
        self._registry.closed = before.closed

    def _at_exit(self) -> None:
        """End the reaper before the interpreter ends. Waits at most `AT_EXIT_SECONDS` for a running callback."""
        with self._guard:
            if not self._registry.closed:
                self._registry.close()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(AT_EXIT_SECONDS)

    def _look_by(self, look_ms: int) -> None:
        """Wake the reaper, or start it when this timer has none yet. The caller holds the lock."""
        if self._registry.closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._reap, name=f"{type(self).__name__}-reaper", daemon=True)
            self._thread.start()
        elif self._sleeps_until != AWAKE:
            self._changed.notify_all()
        self._sleeps_until = AWAKE

    def _reap(self) -> None:
        registry = self._registry
        while not (registry.closed or registry.left_in_parent):
            with self._guard:
                due = self._next_batch(registry)
            for handle in due:
                self._hand_over(handle)

    def _next_batch(self, registry: TimerRegistry) -> list[TimerHandle]:
        """The due handles. When none is due, sleep, then return an empty list. The caller holds the timer's lock."""
        self._sleeps_until = AWAKE
        self._wakeups += 1
        registry.drain_inbox()
        due = registry.due(BATCH)
        if due or registry.closed:
            return due
        self._sleeps_until = math.inf  # from here on `schedule` wants to wake the reaper, and waits for the lock
        next_ms = registry.next_ms()
        if next_ms is not None:
            self._sleeps_until = next_ms
        if registry.inbox:
            self._sleeps_until = AWAKE
            return due
        timeout_ms = None
        if next_ms is not None:
            left_ns = next_ms * NS_PER_MS - self._clock.monotonic_ns()
            timeout_ms = min(left_ns, LONGEST_SLEEP_MS * NS_PER_MS) / NS_PER_MS
        self._clock.wait(self._changed, timeout_ms)
        self._sleeps_until = AWAKE
        return due

    def _hand_over(self, handle: TimerHandle) -> None:
        if self._executor == "inline":
            self._run(handle)
            return
        try:
            self._pool_of().submit(self._run, handle)
        except Exception as error:
            handle.cancel()
            # No error when `close` has already returned this timer, or when the interpreter ends.
            if not self.closed and "interpreter shutdown" not in str(error):
                self._report(handle, error)

    def _pool_of(self) -> Executor:
        if isinstance(self._executor, Executor):
            return self._executor
        with self._guard:
            if self._registry.closed:
                raise RuntimeError("the timer is closed")  # nobody would shut a new pool down
            if self._pool is None:
                self._pool = ThreadPoolExecutor(thread_name_prefix=f"{type(self).__name__}-callback")
            return self._pool

    def _run(self, handle: TimerHandle) -> None:
        """Call the callback, unless the timer was cancelled or postponed meanwhile."""
        registry = handle._registry
        with registry.lock:
            callback, args = handle._callback, handle._args
            if not registry.start(handle) or callback is None:
                return
            self._fired += 1
        running = self._this_thread.running
        running.append(handle)
        try:
            handle._context.copy().run(callback, *args)
        except BaseException as error:
            self._report(handle, error)
        finally:
            running.pop()
            with registry.lock:
                registry.finish(handle)
                if not registry.left_in_parent:
                    self._ended.notify_all()

    def _report(self, handle: TimerHandle, error: BaseException) -> None:
        with self._guard:
            self._failed += 1
        try:
            if self._on_error is not None:
                self._on_error(handle, error)
            else:
                logger.error("a timer's callback raised: %r", handle, exc_info=error)
        except BaseException:
            logger.exception("on_error raised, for %r and %r", handle, error)


_living: weakref.WeakSet[SystemTimer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for timer in list(_living):
        timer._after_fork_in_child()


def _at_exit() -> None:
    for timer in list(_living):
        timer._at_exit()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
# `concurrent.futures` uses this hook too. It is private, but unchanged since 3.9. Hooks of `atexit` run too late: the
# pools have ended by then.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
