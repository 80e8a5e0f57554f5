"""A submission: runs of one job that the scheduler gives to an executor. This module also executes them.

`run` replaces APScheduler's `run_job`, which looks up its logger under a lock that all workers share, and makes two log
calls for each job. The look-up and the log calls are a third of the cost of a short job. `run` makes the same events
and log lines as `run_job`, and also clears tracebacks. `run` does not check the misfire grace, because the job
source has checked it. Coroutines run in APScheduler's own `run_coroutine_job`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from traceback import clear_frames, format_tb
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_REMOVED,
    EVENT_JOB_SUBMITTED,
    JobEvent,
    JobExecutionEvent,
    JobSubmissionEvent,
)
from apscheduler.executors.base import run_coroutine_job

from wheel_sched_apscheduler.occurrence import Occurrence, reset_current, set_current
from wheel_sched_apscheduler.run_times import to_us

if TYPE_CHECKING:
    from apscheduler.events import SchedulerEvent
    from apscheduler.job import Job


# `token` and `redelivered` of an occurrence, see `CurrentOccurrence`; a tuple is cheap, and each job needs one
FencingInfo: TypeAlias = tuple[int, bool]
_logger = lru_cache(maxsize=64)(logging.getLogger)


class EndListener(Protocol):
    """A job source that wants to know how its submissions end."""

    def ended(self, submission: Submission, events: Sequence[SchedulerEvent]) -> None:
        """Report the end of a submission with its events. No events: it was interrupted. Any thread may call it."""


class Reports(Protocol):
    """The methods by which adapters report to the scheduler. Any thread may call them.

    `closing` is True from the beginning of the scheduler's shutdown.
    """

    closing: bool

    def wants(self, mask: int) -> bool:
        """Whether there is a listener for an event code in `mask`."""

    def announce(self, events: list[SchedulerEvent]) -> None:
        """Hand events to the listeners, in order."""

    def last_run_ended(self, submission: Submission, gone: bool = True) -> None:
        """Report that a submission whose `last` is True has ended. The caller first announces the events of its runs.

        `gone`: whether the job is now removed. False: the jobstore hands the same runs out again.
        """

    def finished(self) -> None:
        """Report that a submission has ended, in any way."""

    def wakeup(self) -> None:
        """Have the scheduler make a pass now, in which it calls `ExecutorAdapter.check_workers`."""


@dataclass(slots=True, eq=False)
class Submission:
    """Runs of one job that are due together.

    Args:
        job: the job. It has no misfire grace, because the job source has already checked the lateness.
        alias: the alias of the job's jobstore.
        run_times: the run times to run, earliest first; empty when all came too late.
        source: gets the events of the end; no events if the job was interrupted and must be handed out again. Defaults
            to None: the jobstore needs no report, and hands out no job twice.
        occurrence: the occurrence that the jobstore handed out. Defaults to None: a stock jobstore.
        last: whether these are the job's last runs, after which it is removed. Defaults to False. Also False when
            `occurrence.redelivered` is True, because the job may exist beside such a run.
        late: run times that came too late and are dropped. Defaults to none.
    """

    job: Job
    alias: str
    run_times: list[datetime]
    source: EndListener | None = None
    occurrence: Occurrence | None = None
    last: bool = False
    late: Sequence[datetime] = ()

    def end(self, events: Sequence[SchedulerEvent]) -> None:
        """Report the end to the job source."""
        if self.source is not None:
            self.source.ended(self, events)

    @property
    def comes_again(self) -> bool:
        """Whether the jobstore hands the job out again if it is interrupted."""
        return self.source is not None

    @property
    def fencing(self) -> FencingInfo | None:
        """Token and `redelivered` of the occurrence, see `CurrentOccurrence`. None if there is no occurrence."""
        occurrence = self.occurrence
        return None if occurrence is None else (occurrence.token, occurrence.redelivered)

    def begin(self) -> None:
        """Note in the occurrence that the job starts to run in this process."""
        occurrence = self.occurrence
        if occurrence is not None:
            occurrence.mark_started()

    def removed(self) -> SchedulerEvent:
        return JobEvent(EVENT_JOB_REMOVED, self.job.id, self.alias)

    def missed(self) -> list[SchedulerEvent]:
        """Events of the run times that came too late."""
        return [JobExecutionEvent(EVENT_JOB_MISSED, self.job.id, self.alias, run_time) for run_time in self.late]

    def submitted(self) -> SchedulerEvent:
        return JobSubmissionEvent(EVENT_JOB_SUBMITTED, self.job.id, self.alias, self.run_times)

    def refused(self) -> SchedulerEvent:
        """The event of a submission that is refused because `max_instances` runs of the job are under way."""
        run_times = [*self.late, *self.run_times]  # late run times are refused as well, and not also reported as missed
        return JobSubmissionEvent(EVENT_JOB_MAX_INSTANCES, self.job.id, self.alias, run_times)

    def failed(self, error: BaseException) -> list[SchedulerEvent]:
        """Events of a job that could not run: the executor is gone or broken, or the arguments cannot be sent to it."""
        return [
            JobExecutionEvent(EVENT_JOB_ERROR, self.job.id, self.alias, run_time, exception=error, traceback="")
            for run_time in self.run_times
        ]


def in_grace(
    job: Job, run_times: list[datetime], now: datetime, logger: logging.Logger
) -> tuple[list[datetime], list[datetime]]:
    """The run times that may still run at `now`, and those that came too late. Logs how many came too late."""
    if job.misfire_grace_time is None:
        return run_times, []
    oldest_us = to_us(now) - job.misfire_grace_time * 1_000_000
    late = [run_time for run_time in run_times if to_us(run_time) < oldest_us]
    if late:
        logger.warning('%d run times of job "%s" came too late and are dropped', len(late), job)
    return [run_time for run_time in run_times if to_us(run_time) >= oldest_us], late


def without_grace(job: Job) -> Job:
    """The job without a misfire grace, a copy if needed. So its time in an executor's queue is not lateness."""
    if job.misfire_grace_time is None:
        return job
    twin = object.__new__(type(job))
    for kind in type(job).__mro__:
        for slot in getattr(kind, "__slots__", ()):
            if slot != "__weakref__" and hasattr(job, slot):
                setattr(twin, slot, getattr(job, slot))
    twin.misfire_grace_time = None
    return twin


def run(
    job: Job, alias: str, run_times: list[datetime], logger_name: str, fencing: FencingInfo | None
) -> list[SchedulerEvent]:
    """Run `job` for each of its run times, and return the events of their ends. Works in any thread or process."""
    logger = _logger(logger_name)
    logs_info = logger.isEnabledFor(logging.INFO)
    events: list[Any] = []
    for run_time in run_times:
        if logs_info:
            logger.info('Running job "%s" (scheduled at %s)', job, run_time)
        mark = None if fencing is None else set_current(job.id, run_time, *fencing)
        try:
            value = job.func(*job.args, **job.kwargs)
        except BaseException as error:
            text = "".join(format_tb(error.__traceback__))
            events.append(JobExecutionEvent(EVENT_JOB_ERROR, job.id, alias, run_time, exception=error, traceback=text))
            logger.exception('Job "%s" raised an exception', job)
            clear_frames(error.__traceback__)  # a reference cycle would keep the job's local variables alive
        else:
            events.append(JobExecutionEvent(EVENT_JOB_EXECUTED, job.id, alias, run_time, value))
            if logs_info:
                logger.info('Job "%s" executed successfully', job)
        finally:
            if mark is not None:
                reset_current(mark)
    return events


async def run_coroutine(
    job: Job, alias: str, run_times: list[datetime], logger_name: str, fencing: FencingInfo | None
) -> list[SchedulerEvent]:
    """Run a coroutine job for each of its run times, and return the events of their ends. Call it in a new task."""
    events: list[Any] = []
    for run_time in run_times:
        if fencing is not None:  # the context ends with the task: nothing to reset
            set_current(job.id, run_time, *fencing)
        events += await run_coroutine_job(job, alias, [run_time], logger_name)
    return events
