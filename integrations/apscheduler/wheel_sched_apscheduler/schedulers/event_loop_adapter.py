"""The way from the scheduler's thread to an asyncio executor, in slices that leave the event loop its turns."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from apscheduler.events import EVENT_JOB_ERROR
from apscheduler.util import iscoroutinefunction_partial

from wheel_sched_apscheduler.schedulers.executor_adapters import Lane, Reports
from wheel_sched_apscheduler.schedulers.running import run, run_coroutine
from wheel_sched_apscheduler.schedulers.submission import Handover

if TYPE_CHECKING:
    from apscheduler.executors.asyncio import AsyncIOExecutor

_SLICE = 16  # tasks started in one turn of the loop: well under a millisecond of it


class EventLoopLane(Lane):
    """To an `AsyncIOExecutor`: coroutines become tasks of the loop, other functions go to its default executor.

    A coroutine that a shutdown cancels is reported as failed only when its store would not hand it out again.
    """

    def __init__(self, executor: AsyncIOExecutor, reports: Reports) -> None:
        super().__init__(executor, reports)
        self._loop: asyncio.AbstractEventLoop = executor._eventloop
        self._queue: deque[Handover] = deque()
        self._feeding = False
        self._begun = threading.Event()

    def wait_begun(self, patience_s: float) -> None:
        """Until the loop has started all it was given; called by the scheduler's thread."""
        self._begun.wait(patience_s)

    def _tell(self, accepted: list[Handover], refused: list[Handover]) -> None:
        super()._tell([], refused)  # submissions are announced on the loop, right before they start

    def _run(self, handovers: list[Handover]) -> None:
        self._begun.clear()
        self._queue.extend(handovers)
        try:
            self._loop.call_soon_threadsafe(self._feed)
        except RuntimeError:  # the loop is closed
            self.abandon()

    def _feed(self, again: bool = False) -> None:
        """On the loop: start a slice, and come back for the rest in the loop's next turn."""
        if self._reports.closing:
            self.abandon()
        if self._feeding and not again:
            return
        for _ in range(min(_SLICE, len(self._queue))):
            self._start(self._queue.popleft())
        self._feeding = bool(self._queue)
        if self._feeding:
            self._loop.call_soon(self._feed, True)
        else:
            self._begun.set()

    def _start(self, handover: Handover) -> None:
        super()._tell([handover], [])
        job, lease = handover.job, handover.lease
        handover.begin()
        name = self.executor._logger.name
        future: asyncio.Future[Any]
        try:
            if iscoroutinefunction_partial(job.func):
                future = self._loop.create_task(run_coroutine(job, handover.alias, handover.run_times, name, lease))
            else:
                future = self._loop.run_in_executor(None, run, job, handover.alias, handover.run_times, name, lease)
        except Exception as error:
            self._failed(handover, error)
            return
        self.executor._pending_futures.add(future)
        future.add_done_callback(partial(self._ended, handover))

    def _ended(self, handover: Handover, future: asyncio.Future[Any]) -> None:
        self.executor._pending_futures.discard(future)
        if future.cancelled():
            self._dropped(handover)
        elif (error := future.exception()) is not None:
            self._failed(handover, error)
        else:
            events = future.result()
            if self._reports.closing and handover.comes_again:
                events = [event for event in events if not _cancelled(event)]
            self._succeeded(handover, events)


def _cancelled(event: Any) -> bool:
    """Whether a coroutine ended because it was cancelled: stock's runner turns that into an error of the job."""
    return bool(event.code == EVENT_JOB_ERROR and isinstance(event.exception, asyncio.CancelledError))
