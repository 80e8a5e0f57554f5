"""WheelAsyncIOScheduler: coroutines run on the event loop, and a thread claims jobs from the jobstores.

`EventLoopAdapter` submits jobs to an asyncio executor, a few at a time (a *slice*). Between two slices the event loop
does other work.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from apscheduler.events import EVENT_JOB_ERROR
from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.util import iscoroutinefunction_partial

from wheel_sched_apscheduler.schedulers.executor_adapters import ExecutorAdapter
from wheel_sched_apscheduler.schedulers.scheduler import WheelScheduler
from wheel_sched_apscheduler.schedulers.submission import Reports, Submission, run, run_coroutine

if TYPE_CHECKING:
    from apscheduler.events import SchedulerEvent
    from apscheduler.executors.base import BaseExecutor

_PATIENCE_S = 0.05  # a blocked event loop must not delay the other executors for long
_SLICE = 16  # tasks that one turn of the loop starts, in much less than a millisecond


class WheelAsyncIOScheduler(WheelScheduler, AsyncIOScheduler):
    """Replaces `AsyncIOScheduler`, and accepts its setting `event_loop`. See `WheelScheduler` for other settings.

    A thread of the scheduler claims and settles jobs. The event loop only starts the coroutines, a few at a time, and
    calls the listeners. `add_job` and the other methods call the store in the caller's thread, and block it. A
    coroutine that must not wait for a server calls them with `await asyncio.to_thread(scheduler.add_job, ...)`.
    """

    default_batch = 32  # between two batches the interpreter's lock is free for the event loop
    _eventloop: asyncio.AbstractEventLoop | None

    def start(self, paused: bool = False) -> None:
        """Start the scheduler. Call this on the running event loop.

        Raises:
            SchedulerAlreadyRunningError: the scheduler was started before and not shut down.
            RuntimeError: no event loop is running and none was given.
        """
        self._before_start()
        if self._eventloop is None or self._eventloop.is_closed():
            self._eventloop = asyncio.get_running_loop()
        BaseScheduler.start(self, paused)
        self._owner = threading.Thread(target=self._main_loop, name="APScheduler", daemon=True)
        self._owner.start()

    @property
    def running(self) -> bool:
        """Overrides `WheelScheduler.running`. Also False when the event loop was closed."""
        loop = self._eventloop
        return super().running and not (loop is None or loop.is_closed())

    def announce(self, events: list[SchedulerEvent]) -> None:
        """Hand events to the listeners, on the event loop unless it is closed."""
        loop = self._eventloop
        if loop is not None and not self._on_the_loop():
            try:
                loop.call_soon_threadsafe(super().announce, events)
            except RuntimeError:  # the loop is closed, so only this thread is left
                super().announce(events)
        else:
            super().announce(events)

    async def drain_async(self, timeout: float | None = None) -> bool:
        """Do what `drain` does, for a coroutine: pause, and wait until all submitted jobs have ended."""
        return await asyncio.to_thread(partial(self.drain, timeout))

    def drain(self, timeout: float | None = None) -> bool:
        """Overrides `WheelScheduler.drain`. Do not call it from the event loop's thread, which runs the jobs.

        Raises:
            SchedulerNotRunningError: the scheduler was not started.
            RuntimeError: called on the event loop or from inside a job; nothing was changed.
        """
        if self._on_the_loop():
            raise RuntimeError("drain would stop the event loop that it waits for: await drain_async() instead")
        return super().drain(timeout)

    def shutdown(self, wait: bool = True) -> None:
        """Cancel running coroutines, as stock APScheduler does, and end executors and job stores.

        Await `drain_async` first to let coroutines end. The method returns at once: a new thread ends executors and job
        stores, and the interpreter does not exit before that thread has ended.

        Args:
            wait: whether other executors wait for their jobs. Defaults to True.

        Raises:
            SchedulerNotRunningError: the scheduler was not started, or is being shut down.
        """
        self._begin_the_end()
        loop = self._eventloop
        if loop is None or self._on_the_loop() or not loop.is_running():  # a closed loop does not run
            self._cancel_coroutines()
        else:
            loop.call_soon_threadsafe(self._cancel_coroutines)
        threading.Thread(target=self._end, args=(wait,), name="wheel-sched-shutdown", daemon=False).start()

    def _submit_all(self, submissions: list[Submission]) -> None:
        """Submit the jobs, and wait until the event loop has started them. Only then does the scheduler claim more.

        There are two reasons. While this thread claims and reads a batch, it holds the interpreter's lock, and delays
        the event loop. And jobs that this process cannot start yet must stay in the store for other processes.
        """
        super()._submit_all(submissions)
        for adapter in list(self._adapters.values()):
            if isinstance(adapter, EventLoopAdapter):
                adapter.wait_begun(_PATIENCE_S)

    def _cancel_coroutines(self) -> None:
        for adapter in list(self._adapters.values()):
            if isinstance(adapter, EventLoopAdapter):
                adapter.abandon()
        for executor in list(self._executors.values()):
            if isinstance(executor, AsyncIOExecutor):
                executor.shutdown()

    def _end_executor(self, executor: BaseExecutor, wait: bool) -> None:
        if not isinstance(executor, AsyncIOExecutor):  # `_cancel_coroutines` has ended the asyncio executors
            super()._end_executor(executor, wait)

    def _adapter_for(self, executor: BaseExecutor) -> ExecutorAdapter:
        if isinstance(executor, AsyncIOExecutor) and type(executor)._do_submit_job is AsyncIOExecutor._do_submit_job:
            return EventLoopAdapter(executor, self)
        return super()._adapter_for(executor)

    def _on_the_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._eventloop
        except RuntimeError:
            return False


class EventLoopAdapter(ExecutorAdapter):
    """Submits jobs to an `AsyncIOExecutor`: coroutines as tasks, other functions to the loop's default executor.

    If a shutdown cancels a coroutine whose jobstore hands it out again, the coroutine is not reported as failed.
    """

    def __init__(self, executor: AsyncIOExecutor, reports: Reports) -> None:
        super().__init__(executor, reports)
        self._loop: asyncio.AbstractEventLoop = executor._eventloop
        self._queue: deque[Submission] = deque()
        self._slicing = False
        self._begun = threading.Event()

    def wait_begun(self, patience_s: float) -> None:
        """Wait until the event loop has started all submissions, at most `patience_s` s. Do not call it on the loop."""
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
        """Start a few submissions now, and the others in the next turns of the event loop. Runs on the event loop."""
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
    """Whether the event says that a coroutine was cancelled. APScheduler reports that as an error of the job."""
    return bool(event.code == EVENT_JOB_ERROR and isinstance(event.exception, asyncio.CancelledError))
