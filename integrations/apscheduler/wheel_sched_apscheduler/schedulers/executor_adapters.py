"""Executor adapters: they submit jobs to APScheduler's executors, a batch at a time.

A stock scheduler submits each job separately, which costs a future with its condition, a queue entry and a callback. It
spends 60 to 80 % of its time on this. The adapter for a thread pool puts a whole batch into one deque. All idle workers
take jobs from the deque, and each takes the next job when it has finished the last one. So slow jobs delay no other job
while the pool has a free thread.

Each adapter updates the executor's own count of running instances, so `max_instances` has APScheduler's meaning. Each
submission ends in an event (unless a shutdown interrupts it and the jobstore hands it out again), also when a worker
process dies or cannot get the arguments. In these cases stock APScheduler only writes to the log.

Threads: only the scheduler's thread calls `submit`.
"""

from __future__ import annotations

import threading
import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Any

from apscheduler.events import EVENT_JOB_SUBMITTED
from apscheduler.executors.base import MaxInstancesReachedError
from apscheduler.executors.pool import BasePoolExecutor, ProcessPoolExecutor, ThreadPoolExecutor

from wheel_sched_apscheduler.occurrence import claimed_copy
from wheel_sched_apscheduler.run_times import to_us
from wheel_sched_apscheduler.schedulers.submission import Reports, Submission, run

if TYPE_CHECKING:
    from concurrent.futures import Future

    from apscheduler.events import SchedulerEvent
    from apscheduler.executors.base import BaseExecutor
    from apscheduler.job import Job

_QUICK_S = 0.0002  # a job that is shorter counts as quick: no other worker can work meanwhile
_QUICK_IN_A_ROW = 32
_FEW_WORKERS = 2

this_thread = threading.local()  # its `working` is True while the thread runs a job or reports its end


def inside_a_job() -> bool:
    """Whether the calling thread runs a job, or reports the end of one. Such a thread cannot wait for jobs."""
    return getattr(this_thread, "working", False)


class ExecutorAdapter:
    """Submits jobs to one executor.

    Args:
        executor: runs the jobs. It must be started.
        reports: the scheduler. The adapter reports submissions, refusals and ends of jobs to it.
    """

    def __init__(self, executor: BaseExecutor, reports: Reports) -> None:
        self.executor = executor
        self._reports = reports
        self._queue: deque[Submission] = deque()  # submitted, not started

    def submit(self, submissions: list[Submission]) -> None:
        """Run these submissions. A job with too many running instances is refused, and an event says so."""
        accepted, refused, all_late = [], [], []
        instances = self.executor._instances
        with self.executor._lock:
            for submission in submissions:
                job = submission.job
                running = instances.get(job.id, 0)
                if running >= job.max_instances:
                    refused.append(submission)
                elif not submission.run_times:
                    all_late.append(submission)
                else:
                    instances[job.id] = running + 1
                    accepted.append(submission)
        self._report(accepted, refused)
        for submission in accepted:
            if submission.late:
                self._reports.announce(submission.missed())
        for submission in all_late:
            self._all_late(submission)
        if accepted:
            self._run(accepted)

    def check_workers(self) -> bool:
        """Start workers if jobs wait too long. Each pass calls this. Returns whether the next call must come soon."""
        return False

    def abandon(self) -> None:
        """Drop the submissions that have not started. The scheduler calls this when it shuts down."""
        while self._queue:
            self._dropped(self._queue.popleft())

    def _run(self, submissions: list[Submission]) -> None:
        """Run these submissions. If it raises, none of them runs."""
        raise NotImplementedError

    def _report(self, accepted: list[Submission], refused: list[Submission]) -> None:
        events = [submission.submitted() for submission in accepted] if self._reports.wants(EVENT_JOB_SUBMITTED) else []
        for submission in refused:
            self.executor._logger.warning(
                'Execution of job "%s" skipped: maximum number of running instances reached (%d)',
                submission.job,
                submission.job.max_instances,
            )
            event = submission.refused()
            events.append(event)
            submission.end((event,))
        if events:
            self._reports.announce(events)
        for submission in refused:
            if submission.last:
                self._reports.last_run_ended(submission, gone=not submission.comes_again)

    def _all_late(self, submission: Submission) -> None:
        """Send the events of a submission that does not run, because all its run times came too late."""
        self._ended_with(submission, submission.missed())

    def _ended_with(self, submission: Submission, events: list[SchedulerEvent]) -> None:
        submission.end(events)
        self._reports.announce(events)
        if submission.last:
            self._reports.last_run_ended(submission)

    def _succeeded(self, submission: Submission, events: list[SchedulerEvent]) -> None:
        submission.end(events)
        self.executor._run_job_success(submission.job.id, events)
        if submission.last:
            self._reports.last_run_ended(submission, gone=bool(events))
        self._reports.finished()

    def _failed(self, submission: Submission, error: BaseException) -> None:
        events = submission.failed(error)
        submission.end(events)
        self.executor._run_job_error(submission.job.id, error, error.__traceback__)
        self._reports.announce(events)
        if submission.last:
            self._reports.last_run_ended(submission)
        self._reports.finished()

    def _dropped(self, submission: Submission) -> None:
        """Report a job that did not start or was interrupted.

        If the scheduler shuts down and the jobstore hands the job out again, this is not reported as an error.
        """
        if submission.comes_again and self._reports.closing:
            self._succeeded(submission, [])
        else:
            self._failed(submission, CancelledError("the scheduler was shut down before the job ended"))


class GenericExecutorAdapter(ExecutorAdapter):
    """Submits jobs one at a time, by the executor's `submit_job`. Used for executors without an adapter of their own.

    Such an executor reports the end of a run with the job id, without the submission, and sends no event for an error.
    So this adapter replaces the two methods by which this executor object reports the end of a run.
    """

    def __init__(self, executor: BaseExecutor, reports: Reports) -> None:
        super().__init__(executor, reports)
        self._unended: dict[str, list[Submission]] = {}
        self._submitted_lock = threading.Lock()
        executor._run_job_success = partial(self._reported, executor._run_job_success)
        executor._run_job_error = partial(self._reported_error, executor._run_job_error)

    def submit(self, submissions: list[Submission]) -> None:
        for submission in submissions:
            job_id = submission.job.id
            if not submission.run_times:
                if self.executor._instances.get(job_id, 0) >= submission.job.max_instances:
                    self._report([], [submission])
                else:
                    self._all_late(submission)
                continue
            with self._submitted_lock:  # before the call: some executors run the job inside it
                self._unended.setdefault(job_id, []).append(submission)
            try:
                self.executor.submit_job(self._job_for(submission), submission.run_times)
            except MaxInstancesReachedError:
                self._take_back(job_id, submission)
                self._report([], [submission])
            except Exception as error:
                self._take_back(job_id, submission)
                self.executor._logger.exception('Error submitting job "%s"', submission.job)
                self._ended_with(submission, submission.failed(error))
            else:
                self._drop_count_of_none(job_id)
                self._report([submission], [])
                if submission.late:
                    self._reports.announce(submission.missed())

    def _drop_count_of_none(self, job_id: str) -> None:
        """Remove the executor's count of a job's running instances, if the count is zero.

        An executor that runs the job inside `submit_job` decreases the count before APScheduler increases it. So a
        count of zero would remain for each job id.
        """
        executor = self.executor
        with executor._lock:
            if executor._instances.get(job_id) == 0:
                del executor._instances[job_id]

    def _job_for(self, submission: Submission) -> Job:
        """The job to submit. If it has an occurrence: a copy that itself sets `current_occurrence()` when it runs."""
        if submission.occurrence is None:
            return submission.job
        occurrence = submission.occurrence
        job = claimed_copy(submission.job, occurrence.token, None, redelivered=occurrence.redelivered)
        job.occurrence.run_at(submission.run_times)
        return job

    def _take_back(self, job_id: str, submission: Submission | None = None, event: Any = None) -> Submission | None:
        """Remove and return `submission`; None = the submission with the event's run time, else the job's oldest."""
        with self._submitted_lock:
            out = self._unended.get(job_id, [])
            if submission is None and event is not None:
                at_us = to_us(event.scheduled_run_time)
                submission = next((each for each in out if any(to_us(run) == at_us for run in each.run_times)), None)
            if submission is None and out:
                submission = out[0]
            if submission in out:
                out.remove(submission)
            if not out:
                self._unended.pop(job_id, None)
        return submission

    def _reported(self, report: Callable[..., None], job_id: str, events: list[SchedulerEvent]) -> None:
        submission = self._take_back(job_id, event=events[0] if events else None)
        if submission is not None:
            submission.end(events)
        report(job_id, events)
        if submission is not None and submission.last:
            self._reports.last_run_ended(submission, gone=bool(events))
        self._reports.finished()

    def _reported_error(
        self, report: Callable[..., None], job_id: str, error: BaseException, traceback: Any = None
    ) -> None:
        submission = self._take_back(job_id)
        report(job_id, error, traceback)
        if submission is not None:
            self._ended_with(submission, submission.failed(error))
        self._reports.finished()


class ThreadPoolAdapter(ExecutorAdapter):
    """Submits jobs to a pool of threads: jobs wait in one deque, and as many workers as needed take them.

    Before a worker runs a job, it starts another worker if the deque has more jobs. After `_QUICK_IN_A_ROW` quick jobs
    only `_FEW_WORKERS` workers stay, because more would only wait for each other and for the interpreter's lock. If all
    of these run slow jobs, `check_workers` sees that the deque does not shrink, and starts more.
    """

    def __init__(self, executor: ThreadPoolExecutor, reports: Reports) -> None:
        super().__init__(executor, reports)
        self._workers = 0
        self._at_most: int = executor._pool._max_workers
        self._starting = False
        self._counting = threading.Lock()
        self._quick_in_a_row = 0  # needs no lock, like `_taken`: a wrong value does no harm
        self._taken = 0
        self._taken_before = -1

    def check_workers(self) -> bool:
        if not self._queue or self._workers >= self._at_most:
            return False
        taken = self._taken
        if taken == self._taken_before:
            self._quick_in_a_row = 0
            self._start_worker()
        self._taken_before = taken
        return True

    def _run(self, submissions: list[Submission]) -> None:
        self._queue.extend(submissions)
        with self._counting:  # a worker that leaves has either seen the new jobs, or is no longer counted
            wanted = self._wants_more()
        if wanted:
            self._start_worker()

    def _wants_more(self) -> bool:
        workers = self._workers
        return (
            workers < self._at_most
            and not self._starting
            and (workers < _FEW_WORKERS or self._quick_in_a_row < _QUICK_IN_A_ROW)
        )

    def _start_worker(self) -> None:
        with self._counting:
            if self._starting or self._workers >= self._at_most or not self._queue:
                return
            self._workers += 1
            self._starting = True
        try:
            self.executor._pool.submit(self._work)
        except RuntimeError as error:  # other code has shut the pool down
            if not self._reports.closing:
                self.executor._logger.warning("The thread pool takes no more work: %s", error)
            with self._counting:
                self._workers -= 1
                self._starting = False
                no_worker = self._workers == 0
            if no_worker:
                self.abandon()

    def _may_leave(self) -> bool:
        """Whether this worker may end: the deque is empty, or few workers are enough. If so, counts one worker less."""
        with self._counting:
            if self._queue and not (self._quick_in_a_row >= _QUICK_IN_A_ROW and self._workers > _FEW_WORKERS):
                return False
            self._workers -= 1
            return True

    def _work(self) -> None:
        this_thread.working = True
        self._starting = False
        queue, name = self._queue, self.executor._logger.name
        while True:
            if (
                not queue or (self._quick_in_a_row >= _QUICK_IN_A_ROW and self._workers > _FEW_WORKERS)
            ) and self._may_leave():
                if queue:  # the other workers may all run slow jobs; wake the scheduler to check them
                    self._reports.wakeup()
                break
            try:
                submission = queue.popleft()
            except IndexError:
                continue
            self._taken += 1
            if queue and self._wants_more():
                self._start_worker()
            begun_s = time.perf_counter()
            try:
                submission.begin()
                events = run(submission.job, submission.alias, submission.run_times, name, submission.fencing)
            except BaseException as error:  # not the job's exception, which is in the events
                self._failed(submission, error)
            else:
                self._succeeded(submission, events)
            self._quick_in_a_row = self._quick_in_a_row + 1 if time.perf_counter() - begun_s < _QUICK_S else 0
        this_thread.working = False


class ProcessPoolAdapter(ExecutorAdapter):
    """Submits jobs to a pool of processes, each as a future. Replaces a broken pool, as APScheduler does; logs this."""

    def _run(self, submissions: list[Submission]) -> None:
        for submission in submissions:
            try:
                future = self._submit(submission)
            except Exception as error:
                self._failed(submission, error)
            else:
                future.add_done_callback(partial(self._ended, submission))

    def _submit(self, submission: Submission) -> Future[Any]:
        executor = self.executor
        call = (run, submission.job, submission.alias, submission.run_times, executor._logger.name, submission.fencing)
        try:
            future: Future[Any] = executor._pool.submit(*call)
        except BrokenProcessPool:
            executor._logger.warning("Process pool is broken; replacing pool with a fresh instance")
            executor._pool = type(executor._pool)(executor._pool._max_workers, **executor.pool_kwargs)
            future = executor._pool.submit(*call)
        return future

    def _ended(self, submission: Submission, future: Future[Any]) -> None:
        this_thread.working = True
        try:
            error = future.exception()
            if error is None:
                self._succeeded(submission, future.result())
            else:
                self._failed(submission, error)
        finally:
            this_thread.working = False


def adapter_for(executor: BaseExecutor, reports: Reports) -> ExecutorAdapter:
    """The fastest adapter for `executor` that keeps the behaviour of its class."""
    unchanged = getattr(type(executor), "_do_submit_job", None)
    if isinstance(executor, ThreadPoolExecutor) and unchanged is BasePoolExecutor._do_submit_job:
        return ThreadPoolAdapter(executor, reports)
    if isinstance(executor, ProcessPoolExecutor) and unchanged is ProcessPoolExecutor._do_submit_job:
        return ProcessPoolAdapter(executor, reports)
    return GenericExecutorAdapter(executor, reports)
