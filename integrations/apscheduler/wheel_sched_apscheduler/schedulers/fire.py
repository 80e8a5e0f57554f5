"""One hand-over of a due job: what is to run, and what happened to it on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_SUBMITTED,
    JobExecutionEvent,
    JobSubmissionEvent,
)

if TYPE_CHECKING:
    from apscheduler.events import SchedulerEvent
    from apscheduler.job import Job


@dataclass(slots=True, eq=False)
class Fire:
    """Runs of one job that are due together.

    Args:
        job: the job as it was claimed; its misfire grace has been judged, so executors must not judge it again.
        alias: of its job store.
        run_times: those that are to run, earliest first.
        leased: whether the store hands it out again when its end is never reported.
    """

    job: Job
    alias: str
    run_times: list[datetime]
    leased: bool = False

    def submitted(self) -> SchedulerEvent:
        return JobSubmissionEvent(EVENT_JOB_SUBMITTED, self.job.id, self.alias, self.run_times)

    def refused(self) -> SchedulerEvent:
        """It has as many running instances as it may have."""
        return JobSubmissionEvent(EVENT_JOB_MAX_INSTANCES, self.job.id, self.alias, self.run_times)

    def failed(self, error: BaseException) -> list[SchedulerEvent]:
        """It could not be run at all: an executor that is gone or broken, arguments that cannot reach it."""
        return [
            JobExecutionEvent(EVENT_JOB_ERROR, self.job.id, self.alias, run_time, exception=error, traceback="")
            for run_time in self.run_times
        ]


def missed(job: Job, alias: str, run_times: Sequence[datetime]) -> list[SchedulerEvent]:
    """These runs came too late and are dropped."""
    return [JobExecutionEvent(EVENT_JOB_MISSED, job.id, alias, run_time) for run_time in run_times]


def in_grace(job: Job, run_times: list[datetime], now: datetime) -> tuple[list[datetime], list[datetime]]:
    """Those of `run_times` that may still run at `now`, and those that came too late."""
    if job.misfire_grace_time is None:
        return run_times, []
    oldest = now - timedelta(seconds=job.misfire_grace_time)
    late = [run_time for run_time in run_times if run_time < oldest]
    return [run_time for run_time in run_times if run_time >= oldest], late


def judged(job: Job) -> Job:
    """The job without its grace, for executors that would judge it again after its time in their queue."""
    if job.misfire_grace_time is None:
        return job
    twin = copy_of(job)
    twin.misfire_grace_time = None
    return twin


def copy_of(job: Job) -> Job:
    """A shallow copy, function and arguments shared."""
    twin = object.__new__(type(job))
    for slot in type(job).__slots__:
        if slot != "__weakref__" and hasattr(job, slot):
            setattr(twin, slot, getattr(job, slot))
    return twin
