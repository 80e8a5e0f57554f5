"""One hand-over of a due job to an executor: what is to run, and who hears how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_REMOVED,
    EVENT_JOB_SUBMITTED,
    JobEvent,
    JobExecutionEvent,
    JobSubmissionEvent,
)

from wheel_sched_apscheduler.instants import to_us
from wheel_sched_apscheduler.occurrence import Fire

if TYPE_CHECKING:
    from apscheduler.events import SchedulerEvent
    from apscheduler.job import Job

    from wheel_sched_apscheduler.schedulers.running import Lease


class Ender(Protocol):
    """Whoever gave a fire out and wants to know how it ended."""

    def ended(self, handover: Handover, events: Sequence[SchedulerEvent]) -> None:
        """From any thread."""


@dataclass(slots=True, eq=False)
class Handover:
    """Runs of one job that are due together.

    Args:
        job: as it was taken from its store, without its misfire grace: that has been judged.
        alias: of its job store.
        run_times: those that are to run, earliest first; none when all came too late.
        feed: told with the events of the end, EXECUTED, ERROR or MAX_INSTANCES; with none when the job was cut short
            and is to come again. Defaults to None: its store does not want to know, and gives nothing out twice.
        fire: what the store gave out. Defaults to None.
        last: whether the job leaves its store with these runs. Defaults to False.
        late: run times due with them that came too late and are dropped. Defaults to none.
    """

    job: Job
    alias: str
    run_times: list[datetime]
    feed: Ender | None = None
    fire: Fire | None = None
    last: bool = False
    late: Sequence[datetime] = ()

    def end(self, events: Sequence[SchedulerEvent]) -> None:
        """Tell the store how it ended."""
        if self.feed is not None:
            self.feed.ended(self, events)

    @property
    def comes_again(self) -> bool:
        """Whether its store hands it out again when it is cut short."""
        return self.feed is not None

    @property
    def lease(self) -> Lease | None:
        """What the job may know of its occurrence."""
        fire = self.fire
        return None if fire is None else (fire.token, fire.redelivered)

    def begin(self) -> None:
        """It runs now, in this process."""
        fire = self.fire
        if fire is not None:
            fire.note_start()

    def removed(self) -> SchedulerEvent:
        return JobEvent(EVENT_JOB_REMOVED, self.job.id, self.alias)

    def missed(self) -> list[SchedulerEvent]:
        """What came too late."""
        return [JobExecutionEvent(EVENT_JOB_MISSED, self.job.id, self.alias, run_time) for run_time in self.late]

    def submitted(self) -> SchedulerEvent:
        return JobSubmissionEvent(EVENT_JOB_SUBMITTED, self.job.id, self.alias, self.run_times)

    def refused(self) -> SchedulerEvent:
        """It has as many running instances as it may have."""
        run_times = [*self.late, *self.run_times]  # what came too late is refused as well, and not missed besides
        return JobSubmissionEvent(EVENT_JOB_MAX_INSTANCES, self.job.id, self.alias, run_times)

    def failed(self, error: BaseException) -> list[SchedulerEvent]:
        """It could not be run at all: an executor that is gone or broken, arguments that cannot reach it."""
        return [
            JobExecutionEvent(EVENT_JOB_ERROR, self.job.id, self.alias, run_time, exception=error, traceback="")
            for run_time in self.run_times
        ]


def in_grace(job: Job, run_times: list[datetime], now: datetime) -> tuple[list[datetime], list[datetime]]:
    """Those of `run_times` that may still run at `now`, and those that came too late."""
    if job.misfire_grace_time is None:
        return run_times, []
    oldest_us = to_us(now) - job.misfire_grace_time * 1_000_000
    late = [run_time for run_time in run_times if to_us(run_time) < oldest_us]
    return [run_time for run_time in run_times if to_us(run_time) >= oldest_us], late


def without_grace(job: Job) -> Job:
    """The job, or a copy of it, that no executor finds too late after its time in a queue."""
    if job.misfire_grace_time is None:
        return job
    twin = object.__new__(type(job))
    for kind in type(job).__mro__:
        for slot in getattr(kind, "__slots__", ()):
            if slot != "__weakref__" and hasattr(job, slot):
                setattr(twin, slot, getattr(job, slot))
    twin.misfire_grace_time = None
    return twin
