"""Running a handed-over job in its worker, with `current_fire()` set where the store gave it a token.

Source: APScheduler's `run_job` and `run_coroutine_job`, which do the running.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from apscheduler.executors.base import run_coroutine_job, run_job

from wheel_sched_apscheduler.fire import enter, leave

if TYPE_CHECKING:
    from apscheduler.events import SchedulerEvent
    from apscheduler.job import Job


# token and redelivered, what a job may know of its occurrence: see `CurrentFire`; plain, for one is made for each job
Lease: TypeAlias = tuple[int, bool]


def run(job: Job, alias: str, run_times: list[datetime], logger_name: str, lease: Lease | None) -> list[SchedulerEvent]:
    """Run `job` for each of its run times; the events of their ends. In any thread or process."""
    events: list[Any]
    if lease is None:
        events = run_job(job, alias, run_times, logger_name)
        return events
    token, redelivered = lease
    events = []
    for run_time in run_times:
        mark = enter(job.id, run_time, token, redelivered)
        try:
            events += run_job(job, alias, [run_time], logger_name)
        finally:
            leave(mark)
    return events


async def run_coroutine(
    job: Job, alias: str, run_times: list[datetime], logger_name: str, lease: Lease | None
) -> list[SchedulerEvent]:
    """The same for a coroutine function, as a task of its own."""
    events: list[Any] = []
    for run_time in run_times:
        if lease is not None:  # a task has a context of its own: nothing to leave
            enter(job.id, run_time, *lease)
        events += await run_coroutine_job(job, alias, [run_time], logger_name)
    return events
