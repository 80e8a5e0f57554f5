"""Timers on asyncio: any number of timers behind one handle of the event loop.

    async with AsyncTimer() as timer:
        timer.schedule(200, print, "200 ms later")
        timer.every(1000, refresh)  # a coroutine function is awaited

The timer keeps one `call_later` of the loop, set for the earliest deadline. Time comes from a clock of integer
nanoseconds, not from `loop.time()`: uvloop's time does not move while a callback runs, and asyncio's is not exact
beyond 2**24 seconds. On a `wheel_sched.testing.virtual_loop.VirtualEventLoop` the timer reads the loop's virtual clock.

Threads: only the loop's thread may call a timer. Other threads use `loop.call_soon_threadsafe(timer.schedule, ...)`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.timers.facade import AWAKE, TimerFacade
from wheel_sched.timers.handle import PendingTimer, TimerHandle
from wheel_sched.timers.queue import NS_PER_MS
from wheel_sched.wheel import EntryState

BATCH = 256  # how many due timers run before the loop does other work
LONGEST_SLEEP_MS = 86_400_000  # a day: loops cut or mishandle much longer waits


class AsyncTimer(TimerFacade):
    """Callbacks and coroutines after a delay, at a time, or again and again, on one event loop.

    Args:
        tick_ms: length of a tick; each deadline is rounded up to a whole tick. Defaults to 1.
        wheel_size: see `wheel_sched.wheel.TimingWheel`. Defaults to 4096.
        max_pending: while so many timers wait, a new one is rejected, unless it replaces one. Defaults to None (no
            limit).
        on_error: called with the handle and the exception when a callback or its coroutine has raised. Defaults to
            None: the loop's exception handler is called. A callback's SystemExit or KeyboardInterrupt ends the loop.
        clock: monotonic and wall time. Defaults to the loop's attribute `clock` if it has one, else the machine's.
        loop: the event loop. Defaults to the running one.

    Raises:
        ConfigError: an argument is wrong.
        RuntimeError: no loop was given, and none runs.
    """

    def __init__(
        self,
        tick_ms: int = 1,
        wheel_size: int = 4096,
        *,
        max_pending: int | None = None,
        on_error: Callable[[TimerHandle, BaseException], object] | None = None,
        clock: Clock | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop() if loop is None else loop
        if clock is None:
            own = getattr(self._loop, "clock", None)
            clock = own if isinstance(own, Clock) else SystemClock()
        self._alarm: asyncio.TimerHandle | asyncio.Handle | None = None
        self._tasks: dict[asyncio.Task[None], TimerHandle] = {}
        super().__init__(
            clock,
            nullcontext(),
            tick_ms=tick_ms,
            wheel_size=wheel_size,
            max_pending=max_pending,
            on_error=on_error,
        )

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop whose thread may use this timer."""
        return self._loop

    async def cancel_and_wait(self, handle: TimerHandle) -> EntryState:
        """Cancel a timer. If its coroutine runs, wait until it has ended. Returns the new state.

        A coroutine that calls this for its own handle does not wait.
        """
        state = handle.cancel()
        tasks = [task for task, of in self._tasks.items() if of is handle and task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks)
        return handle.state if tasks else state

    def close(self) -> list[PendingTimer]:
        """Stop. Cancels all waiting timers and returns them in order of their deadlines. Idempotent.

        Running coroutines continue; `wait_closed` waits for them. Afterwards `schedule` raises `Rejected`, and `touch`
        and `reschedule` return False.
        """
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._sleeps_until = math.inf
        return [] if self._registry.closed else self._registry.close()

    async def wait_closed(self) -> None:
        """After `close`: wait until the coroutines of all callbacks have ended, except one that makes this call."""
        while tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            await asyncio.wait(tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        await self.wait_closed()

    def _look_by(self, look_ms: int) -> None:
        if self._sleeps_until == AWAKE:
            return  # at its end, `_wake` sets the alarm
        self._registry.drain_inbox()
        if look_ms < self._sleeps_until:
            self._set_alarm(look_ms)

    def _set_alarm(self, look_ms: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._sleeps_until = look_ms
        left_ns = min(look_ms * NS_PER_MS - self._clock.monotonic_ns(), LONGEST_SLEEP_MS * NS_PER_MS)
        if left_ns <= 0:
            self._alarm = self._loop.call_soon(self._wake)
        else:
            self._alarm = self._loop.call_later(left_ns / 1e9, self._wake)

    def _wake(self) -> None:
        """Run a batch of due timers, and set the alarm for the next deadline."""
        self._alarm = None
        self._wakeups += 1
        registry = self._registry
        self._sleeps_until = AWAKE
        try:
            registry.drain_inbox()
            due = registry.due(BATCH)
            try:
                for handle in due:
                    self._run(handle)
            except BaseException:  # the error ends the loop; the timers of the batch that did not run stay pending
                registry.take_back(due)
                raise
        finally:
            self._sleeps_until = math.inf
            if not registry.closed:
                registry.drain_inbox()
                next_ms = registry.next_ms()
                if next_ms is not None:
                    self._set_alarm(next_ms)

    def _run(self, handle: TimerHandle) -> None:
        registry = self._registry
        callback, args = handle._callback, handle._args
        if not registry.start(handle) or callback is None:
            return
        self._fired += 1
        context = handle._context.copy()
        try:
            result = context.run(callback, *args)
        except (SystemExit, KeyboardInterrupt):
            registry.finish(handle)
            raise  # ends the loop, as it does in the loop's own callbacks
        except BaseException as error:
            self._report(handle, error)
        else:
            if inspect.isawaitable(result):
                task = self._loop.create_task(_awaited(result), context=context)
                self._tasks[task] = handle
                task.add_done_callback(self._ended)
                return
        registry.finish(handle)

    def _ended(self, task: asyncio.Task[None]) -> None:
        handle = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._report(handle, error)
        self._registry.finish(handle)

    def _report(self, handle: TimerHandle, error: BaseException) -> None:
        self._failed += 1
        context = {"message": f"a timer's callback raised: {handle!r}", "exception": error}
        if self._on_error is not None:
            try:
                self._on_error(handle, error)
            except Exception as second:
                context = {"message": f"on_error raised, for {handle!r} and {error!r}", "exception": second}
            else:
                return
        self._loop.call_exception_handler(context)


async def _awaited(result: Awaitable[Any]) -> None:
    await result
