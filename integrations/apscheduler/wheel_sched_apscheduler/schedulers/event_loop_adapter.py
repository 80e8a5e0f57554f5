"""EventLoopAdapter: submits jobs to an asyncio executor, in slices that leave the event loop its turns."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from apscheduler.events import EVENT_JOB_ERROR
from apscheduler.util import iscoroutinefunction_partial

from wheel_sched_apscheduler.schedulers.executor_adapters import ExecutorAdapter
from wheel_sched_apscheduler.schedulers.submission import Reports, Submission, run, run_coroutine

if TYPE_CHECKING:
    from apscheduler.executors.asyncio import AsyncIOExecutor

_SLICE = 16  # tasks started in one turn of the loop: well under a millisecond of it


class EventLoopAdapter(ExecutorAdapter):
    """For an `AsyncIOExecutor`: coroutines become tasks of the loop, other functions run in its default executor.

    A coroutine that a shutdown cancels is reported as failed only when its jobstore does not hand it out again.
    """

    def __init__(self, executor: AsyncIOExecutor, reports: Reports) -> None:
        super().__init__(executor, reports)
        self._loop: asyncio.AbstractEventLoop = executor._eventloop
        self._queue: deque[Submission] = deque()
        self._slicing = False
        self._begun = threading.Event()

    def wait_begun(self, patience_s: float) -> None:
        """Wait until the loop has started all that it was given. Called by the scheduler's thread."""
        self._begun.wait(patience_s)

    def _report(self, accepted: list[Submission], refused: list[Submission]) -> None:
        super()._report([], refused)  # submissions are announced on the loop, right before they start

    def _run(self, submissions: list[Submission]) -> None:
        self._begun.clear()
        self._queue.extend(submissions)
        try:
            self._loop.call_soon_threadsafe(self._start_slice)
        except RuntimeError:  # the loop is closed
            self.abandon()

    def _start_slice(self, again: bool = False) -> None:
        """On the loop: start a slice, and the rest in the next turns of the loop."""
        if self._reports.closing:
            self.abandon()
        if self._slicing and not again:
            return
        for _ in range(min(_SLICE, len(self._queue))):
            self._start(self._queue.popleft())
        self._slicing = bool(self._queue)
        if self._slicing:
            self._loop.call_soon(self._start_slice, True)
        else:
            self._begun.set()

    def _start(self, submission: Submission) -> None:
        super()._report([submission], [])
        job, fencing = submission.job, submission.fencing
        submission.begin()
        name = self.executor._logger.name
        future: asyncio.Future[Any]
        try:
            if iscoroutinefunction_partial(job.func):
                future = self._loop.create_task(
                    run_coroutine(job, submission.alias, submission.run_times, name, fencing)
                )
            else:
                future = self._loop.run_in_executor(
                    None, run, job, submission.alias, submission.run_times, name, fencing
                )
        except Exception as error:
            self._failed(submission, error)
            return
        self.executor._pending_futures.add(future)
        future.add_done_callback(partial(self._ended, submission))

    def _ended(self, submission: Submission, future: asyncio.Future[Any]) -> None:
        self.executor._pending_futures.discard(future)
        if future.cancelled():
            self._dropped(submission)
        elif (error := future.exception()) is not None:
            self._failed(submission, error)
        else:
            events = future.result()
            if self._reports.closing and submission.comes_again:
                events = [event for event in events if not _cancelled(event)]
            self._succeeded(submission, events)


def _cancelled(event: Any) -> bool:
    """Whether a coroutine was cancelled. APScheduler's runner makes an error of the job of that."""
    return bool(event.code == EVENT_JOB_ERROR and isinstance(event.exception, asyncio.CancelledError))
