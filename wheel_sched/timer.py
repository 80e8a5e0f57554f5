"""Timers on threads: Kafka's `SystemTimer` with its reaper, over the timing wheel.

    with SystemTimer() as timer:
        handle = timer.schedule(200, print, "200 ms later")

One thread, the reaper, owns the wheel: it sleeps until the earliest deadline, hands what is due to the executor and is
woken only by a timer that is due before it would wake anyway. An idle timer causes no wake-ups, and a timer that was
never used has no thread.

Threads: any thread may call anything, callbacks included. `schedule` without a key takes no lock: with the compiled
core it is a call or two into the wheel, each of which is one step under the GIL, else it appends to a deque that the
reaper empties (with `max_pending` it does take it, for the count has to be exact). Callbacks run without a lock. A
child made by `fork` starts with an empty timer that works; what was pending fires in the parent.

Source: `org.apache.kafka.server.util.timer.SystemTimer` and `SystemTimerReaper`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Literal, Self

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.errors import ConfigError
from wheel_sched.escaping import logger_of
from wheel_sched.timing.agenda import Agenda
from wheel_sched.timing.deadlines import NS_PER_MS
from wheel_sched.timing.face import AWAKE, TimerFace
from wheel_sched.timing.handle import TimerHandle
from wheel_sched.timing.pending import PendingTimer
from wheel_sched.timing.process_life import watch
from wheel_sched.wheel import EntryState

logger = logger_of("wheel_sched.timer")

BATCH = 256  # how many due timers are handed over before the lock is given up for others
LONGEST_SLEEP_MS = 1 << 45  # a thousand years; a float still counts its milliseconds


AT_EXIT_SECONDS = 1.0  # how long a callback may still run when the interpreter ends


class _Here(threading.local):
    """What this thread is calling."""

    def __init__(self) -> None:
        self.running: list[TimerHandle] = []


class SystemTimer(TimerFace):
    """Callbacks after a delay, at a time, or again and again, on threads.

    Args:
        tick_ms: deadlines round up to it. Defaults to 1.
        wheel_size: slots per level of the wheel, a power of two. Defaults to 4096.
        executor: who calls: "inline" (the reaper itself: no hand-over, and a slow callback delays all), "threads" (a
            pool of this timer's own), or an executor of yours, which is not shut down. Defaults to "inline".
        max_pending: how many timers may wait. Defaults to None (no limit).
        on_error: called with the handle and the exception when a callback raised, or when your executor refused it.
            Defaults to None: logged as an error with its traceback.
        clock: where time comes from. Defaults to the machine's.

    Raises:
        ConfigError: all that is wrong with the arguments.
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
        watch(self)

    def cancel_and_wait(self, handle: TimerHandle, timeout_s: float | None = None) -> EntryState:
        """Cancel, and if the callback runs, wait until it has ended: then nothing of it runs any more.

        From within that callback it does not wait. Answers the state the handle is then in; RUNNING when `timeout_s`
        (real seconds) passed before, or within the callback.
        """
        state = handle.cancel()
        if state is not EntryState.RUNNING or handle in self._here.running:
            return state
        with self._guard:
            self._ended.wait_for(lambda: not handle._runs, timeout_s)
            return handle.state

    def close(self) -> list[PendingTimer]:
        """Stop, and answer what had not begun, by what was left of its delay; it is cancelled. Idempotent.

        Waits for callbacks that run, unless called by one of them. Afterwards `schedule` raises `Rejected`, `touch` and
        `reschedule` answer False, `cancel` answers as ever.
        """
        with self._guard:
            pending = [] if self._agenda.closed else self._agenda.close()
            thread = self._thread
            self._changed.notify_all()
        inside = bool(self._here.running)
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
        """No thread yet, and a lock nobody holds."""
        # Re-entrant, for a finalizer may cancel a timer while its own thread is at work on the wheel.
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)  # something for the reaper
        self._ended = threading.Condition(self._guard)  # a callback has ended
        self._here = _Here()
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._sleeps_until = math.inf

    def after_fork_in_child(self) -> None:
        """Start anew: the reaper and whoever held the lock live in the parent, and so do the timers."""
        lost = self._agenda
        self._reset()
        lost.lost, lost.lock = True, self._guard
        self._lock = self._guard
        self._agenda = self._new_agenda()
        self._agenda.closed = lost.closed

    def at_exit(self) -> None:
        """End the reaper before the interpreter goes; a callback that does not end is not waited for."""
        with self._guard:
            if not self._agenda.closed:
                self._agenda.close()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(AT_EXIT_SECONDS)

    def _attend(self, look_ms: int) -> None:
        """Wake the reaper or bring it to life. Under the lock."""
        if self._agenda.closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._reap, name=f"{type(self).__name__}-reaper", daemon=True)
            self._thread.start()
        elif self._sleeps_until != AWAKE:
            self._changed.notify_all()
        self._sleeps_until = AWAKE

    def _reap(self) -> None:
        agenda = self._agenda
        while not (agenda.closed or agenda.lost):
            with self._guard:
                due = self._next_batch(agenda)
            for handle in due:
                self._hand_over(handle)

    def _next_batch(self, agenda: Agenda) -> list[TimerHandle]:
        """What is due; when nothing is, sleep and answer nothing. Under the lock."""
        self._sleeps_until = AWAKE
        self._wakeups += 1
        agenda.settle()
        due = agenda.due(BATCH)
        if due or agenda.closed:
            return due
        self._sleeps_until = math.inf  # from here on whoever schedules comes to wake, and waits for the lock
        next_ms = agenda.next_ms()
        if next_ms is not None:
            self._sleeps_until = next_ms
        if agenda.inbox:
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
            # `close` has given it back; and when the interpreter ends, pending timers end with it.
            if not self.closed and "interpreter shutdown" not in str(error):
                self._report(handle, error)

    def _pool_of(self) -> Executor:
        if isinstance(self._executor, Executor):
            return self._executor
        with self._guard:
            if self._agenda.closed:
                raise RuntimeError("the timer is closed")  # no pool that nobody would shut down
            if self._pool is None:
                self._pool = ThreadPoolExecutor(thread_name_prefix=f"{type(self).__name__}-callback")
            return self._pool

    def _run(self, handle: TimerHandle) -> None:
        """Call the callback, unless it was cancelled or put off since it was handed over."""
        agenda = handle._agenda
        with agenda.lock:
            callback, args = handle._callback, handle._args
            if not agenda.start(handle) or callback is None:
                return
            self._fired += 1
        running = self._here.running
        running.append(handle)
        try:
            handle._context.copy().run(callback, *args)
        except BaseException as error:
            self._report(handle, error)
        finally:
            running.pop()
            with agenda.lock:
                agenda.finish(handle)
                if not agenda.lost:
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
