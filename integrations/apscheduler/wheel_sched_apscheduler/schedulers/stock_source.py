"""StockJobSource: due jobs from a jobstore that is not ours, a batch at a time.

The source asks the jobstore once for all due jobs. It then gives them out in batches, so that other threads get the
scheduler's lock between two batches. If another thread changes or removes one of these jobs, the source drops the job.
When the source asks the jobstore again, it finds a changed job again.

After an error of the jobstore, the source does not call it for a while. Such an error never ends the scheduler's loop.
In a stock scheduler, an error of any other call than `get_due_jobs` ends the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from apscheduler.jobstores.base import JobLookupError

from wheel_sched_apscheduler.run_times import missed_runs
from wheel_sched_apscheduler.schedulers.submission import Submission, in_grace, without_grace

if TYPE_CHECKING:
    from logging import Logger

    from apscheduler.job import Job
    from apscheduler.jobstores.base import BaseJobStore


@dataclass(slots=True)
class SubmissionBatch:
    """The jobs that a job source gives to the scheduler in one pass.

    Args:
        submissions: the submissions to run.
        head_s: when to ask the job source again, in seconds since 1970; None = when the scheduler is woken.
    """

    submissions: list[Submission] = field(default_factory=list)
    head_s: float | None = None


class StockJobSource:
    """Gives a scheduler the due jobs of one jobstore that is not ours.

    Args:
        store: a started jobstore.
        alias: the jobstore's name in the scheduler.
        executors: the names of all executors. The scheduler may add and remove names.
        retry_s: pause after an error of the jobstore, in seconds.
        logger: logs errors.

    Threads: the caller holds the scheduler's lock for jobstores, as a stock scheduler does.
    """

    locked = True

    def __init__(
        self,
        store: BaseJobStore,
        alias: str,
        executors: Collection[str],
        retry_s: float,
        logger: Logger,
    ) -> None:
        self.store: Any = store
        self.alias = alias
        self._executors = executors
        self._retry_s = retry_s
        self._logger = logger
        self._due: deque[Job] = deque()
        self._changed: set[str] = set()
        self._quiet_until: datetime | None = None
        self._empty_visits = 0

    def forget(self, job_id: str | None = None) -> None:
        """Note that a job was changed or removed. None: every job."""
        if job_id is None:
            self._due.clear()
        elif self._due:
            self._changed.add(job_id)

    def take(self, now: datetime, limit: int) -> SubmissionBatch:
        """Take at most `limit` due jobs. Writes their next run times to the jobstore, and removes jobs without one.

        Pauses a job that cannot run.
        """
        batch = SubmissionBatch()
        if self._quiet_until is not None and now < self._quiet_until:
            batch.head_s = self._quiet_until.timestamp()
            return batch
        self._quiet_until = None
        try:
            if not self._due:
                self._changed.clear()
                self._due.extend(self.store.get_due_jobs(now))
            taken = self._advance(now, limit, batch)
            batch.head_s = self._head(now, taken)
        except Exception as error:
            self._due.clear()
            self._quiet_until = now + timedelta(seconds=self._retry_s)
            batch.head_s = self._quiet_until.timestamp()
            self._logger.warning(
                "Error using job store %r; its jobs stay unchanged, next try in %g s: %s",
                self.alias,
                self._retry_s,
                error,
                exc_info=True,
            )
        return batch

    def put_back(self, submissions: list[Submission]) -> list[Submission]:
        """Put nothing back: the jobstore already has the next run times of these jobs.

        Returns:
            The submissions that must still run, which are all of them.
        """
        return submissions

    def _advance(self, now: datetime, limit: int, batch: SubmissionBatch) -> int:
        taken = 0
        while self._due and taken < limit:
            job = self._due.popleft()
            if job.id in self._changed:
                continue
            taken += 1
            if job.executor not in self._executors:
                self._pause(job, f"there is no executor {job.executor!r}: add it")
                continue
            try:
                run_times, following = missed_runs(job, now)
            except Exception as error:
                self._pause(job, f"its trigger failed ({error!r}): correct it")
                continue
            if not run_times:
                continue
            try:
                self._move_on(job, following)
            except JobLookupError:
                self._logger.info('Job "%s" was removed before it could run', job.id)
                continue
            run_times, late = in_grace(job, run_times, now, self._logger)
            last = following is None
            batch.submissions.append(Submission(without_grace(job), self.alias, run_times, last=last, late=late))
        return taken

    def _move_on(self, job: Job, following: datetime | None) -> None:
        if following is None:
            self.store.remove_job(job.id)
            return
        before = job.next_run_time
        job.next_run_time = following
        try:
            self.store.update_job(job)
        except Exception:
            job.next_run_time = before  # a jobstore in memory has this very object, and has refused the new time
            raise

    def _pause(self, job: Job, reason: str) -> None:
        """Pause a job that cannot run. A stock scheduler would delete it, or its loop would end."""
        self._logger.error('Job "%s" is paused, %s, then resume_job(%r)', job, reason, job.id)
        job.next_run_time = None
        with suppress(JobLookupError):
            self.store.update_job(job)

    def _head(self, now: datetime, taken: int) -> float | None:
        if self._due:
            return now.timestamp()
        head: datetime | None = self.store.get_next_run_time()
        if head is None:
            return None
        if taken or head > now:
            self._empty_visits = 0
            return head.timestamp()
        # A job is due but the jobstore did not give it: it has another owner, another clock, or an unusual date.
        self._empty_visits = min(self._empty_visits + 1, 10)
        return now.timestamp() + 2.0**self._empty_visits / 1000


def utc_now() -> datetime:
    """The present moment as an aware datetime."""
    return datetime.now(UTC)
