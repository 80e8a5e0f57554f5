"""Running a handed-over job in its worker, with `current_fire()` set where the store gave it a token.

Source: APScheduler's `run_job`, with the same events, log lines and clearing of tracebacks; that one looks for its
logger under a lock that all workers share, and makes two log calls for each job: a third of what a short one costs. A
grace is not looked at: it was judged when the job was claimed. Coroutines run in APScheduler's own `run_coroutine_job`.
"""

from __future__ import annotations

import logging
from datetime import datetime
from functools import lru_cache
from traceback import clear_frames, format_tb
from typing import TYPE_CHECKING, Any, TypeAlias

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.executors.base import run_coroutine_job

from wheel_sched_apscheduler.occurrence import enter, leave

if TYPE_CHECKING:
    from apscheduler.events import SchedulerEvent
    from apscheduler.job import Job


# token and redelivered, what a job may know of its occurrence: see `CurrentFire`; plain, for one is made for each job
Lease: TypeAlias = tuple[int, bool]
_logger = lru_cache(maxsize=64)(logging.getLogger)


def run(job: Job, alias: str, run_times: list[datetime], logger_name: str, lease: Lease | None) -> list[SchedulerEvent]:
    """Run `job` for each of its run times; the events of their ends. In any thread or process."""
    logger = _logger(logger_name)
    talkative = logger.isEnabledFor(logging.INFO)
    events: list[Any] = []
    for run_time in run_times:
        if talkative:
            logger.info('Running job "%s" (scheduled at %s)', job, run_time)
        mark = None if lease is None else enter(job.id, run_time, *lease)
        try:
            value = job.func(*job.args, **job.kwargs)
        except BaseException as error:
            text = "".join(format_tb(error.__traceback__))
            events.append(JobExecutionEvent(EVENT_JOB_ERROR, job.id, alias, run_time, exception=error, traceback=text))
            logger.exception('Job "%s" raised an exception', job)
            clear_frames(error.__traceback__)  # a cycle would keep what the job had in hand
        else:
            events.append(JobExecutionEvent(EVENT_JOB_EXECUTED, job.id, alias, run_time, value))
            if talkative:
                logger.info('Job "%s" executed successfully', job)
        finally:
            if mark is not None:
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
