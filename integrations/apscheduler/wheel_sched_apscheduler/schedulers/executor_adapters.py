"""The way from the scheduler to an executor, a batch at a time.

60 to 80 % of a stock scheduler's time goes into handing over each job by itself: a future with its condition, a queue
entry, a callback. Here a batch goes into one deque, and as many futures as there are idle workers empty it, each taking
the next job when it has finished the last: a slow job holds up nobody.

Every way keeps the executor's own count of running instances, so `max_instances` means what it always meant, and every
hand-over ends in an event: also when the executor is gone, a worker process dies or the arguments cannot be sent,
where stock only writes a log line.

Threads: `put` is called by the scheduler's thread alone.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from apscheduler.events import EVENT_JOB_SUBMITTED
from apscheduler.executors.base import MaxInstancesReachedError

from wheel_sched_apscheduler.instants import to_us
from wheel_sched_apscheduler.schedulers.submission import Handover
from wheel_sched_apscheduler.stores.claimed_job import claimed

if TYPE_CHECKING:
    from apscheduler.events import SchedulerEvent
    from apscheduler.executors.base import BaseExecutor
    from apscheduler.job import Job

here = threading.local()  # `working` is True in a thread that runs a job or reports its end


def inside_a_job() -> bool:
    """Whether the calling thread runs a job, or reports the end of one: it cannot wait for itself."""
    return getattr(here, "working", False)


class Reports(Protocol):
    """Whoever wants to know what becomes of hand-overs; called from any thread.

    `closing` is True once the scheduler is being shut down.
    """

    closing: bool

    def wants(self, mask: int) -> bool:
        """Whether anybody listens to events of `mask`."""

    def announce(self, events: list[SchedulerEvent]) -> None:
        """Hand events to the listeners, in order."""

    def parted(self, handover: Handover, gone: bool = True) -> None:
        """A job's last run has ended, as its events have told; unless it is `gone`, it comes again."""

    def finished(self) -> None:
        """One hand-over has ended, whichever way."""

    def wakeup(self) -> None:
        """Have the lanes tended."""


class Lane(ABC):
    """The way to one executor.

    Args:
        executor: where jobs run; started.
        reports: who hears of submissions, refusals and failures.
    """

    def __init__(self, executor: BaseExecutor, reports: Reports) -> None:
        self.executor = executor
        self._reports = reports
        self._queue: deque[Handover] = deque()  # handed over, not begun

    def put(self, handovers: list[Handover]) -> None:
        """Hand these over. What has too many instances running is refused, by event; the rest runs."""
        accepted, refused, passed_over = [], [], []
        instances = self.executor._instances
        with self.executor._lock:
            for handover in handovers:
                job = handover.job
                running = instances.get(job.id, 0)
                if running >= job.max_instances:
                    refused.append(handover)
                elif not handover.run_times:
                    passed_over.append(handover)
                else:
                    instances[job.id] = running + 1
                    accepted.append(handover)
        self._tell(accepted, refused)
        for handover in accepted:
            if handover.late:
                self._reports.announce(handover.missed())
        for handover in passed_over:
            self._passed_over(handover)
        if accepted:
            self._run(accepted)

    @property
    def busy(self) -> bool:
        """Whether something handed over has not ended."""
        return bool(self.executor._instances)

    def tend(self) -> bool:
        """Called by the scheduler's thread at each pass; whether it is to be called again in a moment."""
        return False

    def abandon(self) -> None:
        """Give up what was handed over and has not begun; called at the end, when nothing will begin any more."""
        while self._queue:
            self._dropped(self._queue.popleft())

    @abstractmethod
    def _run(self, handovers: list[Handover]) -> None:
        """Have them run; an exception means none of them will."""

    def _tell(self, accepted: list[Handover], refused: list[Handover]) -> None:
        events = [handover.submitted() for handover in accepted] if self._reports.wants(EVENT_JOB_SUBMITTED) else []
        for handover in refused:
            self.executor._logger.warning(
                'Execution of job "%s" skipped: maximum number of running instances reached (%d)',
                handover.job,
                handover.job.max_instances,
            )
            event = handover.refused()
            events.append(event)
            handover.end((event,))
        if events:
            self._reports.announce(events)
        for handover in refused:
            if handover.last:
                self._reports.parted(handover, gone=not handover.comes_again)

    def _passed_over(self, handover: Handover) -> None:
        """All of its run times came too late."""
        events = handover.missed()
        handover.end(events)
        self._reports.announce(events)
        if handover.last:
            self._reports.parted(handover)

    def _succeeded(self, handover: Handover, events: list[SchedulerEvent]) -> None:
        handover.end(events)
        self.executor._run_job_success(handover.job.id, events)
        if handover.last:
            self._reports.parted(handover, gone=bool(events))
        self._reports.finished()

    def _failed(self, handover: Handover, error: BaseException) -> None:
        events = handover.failed(error)
        handover.end(events)
        self.executor._run_job_error(handover.job.id, error, error.__traceback__)
        self._reports.announce(events)
        if handover.last:
            self._reports.parted(handover)
        self._reports.finished()

    def _dropped(self, handover: Handover) -> None:
        """It was never run, or cut short: a store that leases hands it out again, for others it is an error."""
        if handover.comes_again and self._reports.closing:
            self._succeeded(handover, [])
        else:
            self._failed(handover, CancelledError("the scheduler was shut down before the job ended"))


class AnyLane(Lane):
    """To an executor that is not known here: through its own `submit_job`, one job at a time.

    Such an executor tells its ends by job id alone, and an error not at all. So its two reports are taken over, for
    this one object.
    """

    def __init__(self, executor: BaseExecutor, reports: Reports) -> None:
        super().__init__(executor, reports)
        self._out: dict[str, list[Handover]] = {}
        self._out_lock = threading.Lock()
        executor._run_job_success = partial(self._reported, executor._run_job_success)
        executor._run_job_error = partial(self._reported_error, executor._run_job_error)

    def put(self, handovers: list[Handover]) -> None:
        for handover in handovers:
            job_id = handover.job.id
            if not handover.run_times:
                if self.executor._instances.get(job_id, 0) >= handover.job.max_instances:
                    self._tell([], [handover])
                else:
                    self._passed_over(handover)
                continue
            with self._out_lock:  # before it is submitted: some executors run it inside that call
                self._out.setdefault(job_id, []).append(handover)
            try:
                self.executor.submit_job(self._dressed(handover), handover.run_times)
            except MaxInstancesReachedError:
                self._take_back(job_id, handover)
                self._tell([], [handover])
            except Exception as error:
                self._take_back(job_id, handover)
                self.executor._logger.exception('Error submitting job "%s"', handover.job)
                events = handover.failed(error)
                handover.end(events)
                self._reports.announce(events)
                if handover.last:
                    self._reports.parted(handover)
            else:
                self._drop_count_of_none(job_id)
                self._tell([handover], [])
                if handover.late:
                    self._reports.announce(handover.missed())

    def _drop_count_of_none(self, job_id: str) -> None:
        """An executor that runs the job inside of `submit_job` counts it down before it is counted up, and APScheduler
        then keeps a zero for each id."""
        executor = self.executor
        with executor._lock:
            if executor._instances.get(job_id) == 0:
                del executor._instances[job_id]

    def _dressed(self, handover: Handover) -> Job:
        """The job, which sets the current fire itself where there is one."""
        if handover.fire is None:
            return handover.job
        job = claimed(handover.job, handover.fire.token, None)
        job.fire.redelivered = handover.fire.redelivered
        job.fire.run_at(handover.run_times)
        return job

    def _run(self, handovers: list[Handover]) -> None:
        """Nothing is left to do: `put` does all of it."""

    def _take_back(self, job_id: str, handover: Handover | None = None, event: Any = None) -> Handover | None:
        """The hand-over that is meant: this one, the one whose run time the event names, or the oldest of the job."""
        with self._out_lock:
            out = self._out.get(job_id, [])
            if handover is None and event is not None:
                at_us = to_us(event.scheduled_run_time)
                handover = next((each for each in out if any(to_us(run) == at_us for run in each.run_times)), None)
            if handover is None and out:
                handover = out[0]
            if handover in out:
                out.remove(handover)
            if not out:
                self._out.pop(job_id, None)
        return handover

    def _reported(self, report: Callable[..., None], job_id: str, events: list[SchedulerEvent]) -> None:
        handover = self._take_back(job_id, event=events[0] if events else None)
        if handover is not None:
            handover.end(events)
        report(job_id, events)
        if handover is not None and handover.last:
            self._reports.parted(handover, gone=bool(events))
        self._reports.finished()

    def _reported_error(
        self, report: Callable[..., None], job_id: str, error: BaseException, traceback: Any = None
    ) -> None:
        handover = self._take_back(job_id)
        report(job_id, error, traceback)
        if handover is not None:
            events = handover.failed(error)
            handover.end(events)
            self._reports.announce(events)
            if handover.last:
                self._reports.parted(handover)
        self._reports.finished()
