"""The wheel-driven scheduler for asyncio: coroutines run on the event loop, job stores are visited off it."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.base import BaseScheduler

from wheel_sched_apscheduler.schedulers.event_loop_adapter import EventLoopLane
from wheel_sched_apscheduler.schedulers.executor_adapters import Lane
from wheel_sched_apscheduler.schedulers.scheduler import WheelScheduler

if TYPE_CHECKING:
    from apscheduler.events import SchedulerEvent
    from apscheduler.executors.base import BaseExecutor

    from wheel_sched_apscheduler.schedulers.submission import Handover

_PATIENCE_S = 0.05  # a loop that stands still must not hold up the other executors for long


class WheelAsyncIOScheduler(WheelScheduler, AsyncIOScheduler):
    """Takes the place of `AsyncIOScheduler`; see `WheelScheduler` for its settings, and `event_loop` as in stock.

    Claiming and settling happen in a thread of its own; the event loop only starts the coroutines, a slice at a time,
    and hears the events. `add_job` and the other calls of the API visit the store in the thread that makes them: from
    a coroutine that must not wait for a server, `await asyncio.to_thread(scheduler.add_job, ...)`.
    """

    default_batch = 32  # between two batches the interpreter's lock is free: the event loop gets its turn
    _eventloop: asyncio.AbstractEventLoop | None

    def start(self, paused: bool = False) -> None:
        """Start; to be called on the running event loop.

        Raises:
            SchedulerAlreadyRunningError: it was started before and not shut down.
            RuntimeError: no event loop is running and none was given.
        """
        self._before_start()
        if self._eventloop is None or self._eventloop.is_closed():
            self._eventloop = asyncio.get_running_loop()
        BaseScheduler.start(self, paused)
        self._owner = threading.Thread(target=self._main_loop, name="APScheduler", daemon=True)
        self._owner.start()

    def wakeup(self) -> None:
        """Have the loop look at its stores now. From any thread."""
        WheelScheduler.wakeup(self)

    @property
    def running(self) -> bool:
        """As the others', and False when the event loop was closed."""
        loop = self._eventloop
        return bool(WheelScheduler.running.__get__(self)) and not (loop is None or loop.is_closed())

    def announce(self, events: list[SchedulerEvent]) -> None:
        """Hand events to the listeners on the event loop, where stock calls them too."""
        loop = self._eventloop
        if loop is not None and not self._on_the_loop():
            try:
                loop.call_soon_threadsafe(super().announce, events)
            except RuntimeError:  # it is closed: better heard elsewhere than not at all
                super().announce(events)
        else:
            super().announce(events)

    async def drain_async(self, timeout: float | None = None) -> bool:
        """`drain` for coroutines: pause, and wait until everything handed over has ended."""
        return await asyncio.to_thread(partial(self.drain, timeout))

    def drain(self, timeout: float | None = None) -> bool:
        """As the others'; from another thread than the event loop's, which runs the jobs to wait for.

        Raises:
            SchedulerNotRunningError: it was not started.
            RuntimeError: called on the event loop or from inside a job; nothing was changed.
        """
        if self._on_the_loop():
            raise RuntimeError("drain would stop the event loop that it waits for: await drain_async() instead")
        return super().drain(timeout)

    def shutdown(self, wait: bool = True) -> None:
        """Cancel coroutines that run, as stock does, and end executors and job stores.

        A coroutine that should end by itself is waited for with `drain_async` first. From the event loop it returns at
        once; the store is closed in a thread, which the interpreter waits for.

        Args:
            wait: whether other executors wait for their jobs. Defaults to True.

        Raises:
            SchedulerNotRunningError: it was not started, or is being shut down.
        """
        self._begin_the_end()
        loop = self._eventloop
        if loop is None or self._on_the_loop() or not loop.is_running():  # a closed loop does not run
            self._cancel_coroutines()
        else:
            loop.call_soon_threadsafe(self._cancel_coroutines)
        threading.Thread(target=self._end, args=(wait,), name="wheel-sched-shutdown", daemon=False).start()

    def _hand_over(self, handovers: list[Handover]) -> None:
        """And let the loop begin them before more are claimed: while this thread reads what it has claimed, the loop
        must wait for the interpreter; and what is not begun need not lie in this process."""
        super()._hand_over(handovers)
        for lane in list(self._lanes.values()):
            if isinstance(lane, EventLoopLane):
                lane.wait_begun(_PATIENCE_S)

    def _cancel_coroutines(self) -> None:
        for lane in list(self._lanes.values()):
            if isinstance(lane, EventLoopLane):
                lane.abandon()
        for executor in list(self._executors.values()):
            if isinstance(executor, AsyncIOExecutor):
                executor.shutdown()

    def _end_executor(self, executor: BaseExecutor, wait: bool) -> None:
        if not isinstance(executor, AsyncIOExecutor):  # that one was ended on the loop
            super()._end_executor(executor, wait)

    def _lane_to(self, executor: BaseExecutor) -> Lane:
        if isinstance(executor, AsyncIOExecutor) and type(executor)._do_submit_job is AsyncIOExecutor._do_submit_job:
            return EventLoopLane(executor, self)
        return super()._lane_to(executor)

    def _on_the_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._eventloop
        except RuntimeError:
            return False
