"""Job stores as the scheduler's loop sees them: give me a batch of what is due, moved on in the store.

A stock store is asked once for all that is due and worked off in slices, so that other threads get the scheduler's
lock in between; what they remove or change meanwhile is forgotten here and found again when the store is asked next.

An error of a store costs a pause of that store, never the loop: stock guards only the first of these calls.
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
from wheel_sched_apscheduler.schedulers.submission import Handover, in_grace, without_grace

if TYPE_CHECKING:
    from logging import Logger

    from apscheduler.job import Job
    from apscheduler.jobstores.base import BaseJobStore


@dataclass(slots=True)
class Batch:
    """What one visit to a store brought.

    Args:
        handovers: to be handed over.
        head_s: when the store wants to be visited again, in seconds since 1970; None: when a job is added.
    """

    handovers: list[Handover] = field(default_factory=list)
    head_s: float | None = None


class StockFeed:
    """One job store of APScheduler's or of others.

    Args:
        store: started.
        alias: its name in the scheduler.
        executors: the names of all there are, looked at anew each time.
        retry_s: pause after an error of the store.
        logger: where errors are told.

    Thread rules: every method is called with the scheduler's lock of its stores held, as such a store expects.
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
        self._fruitless = 0

    def forget(self, job_id: str | None = None) -> None:
        """This job (None: every job) was changed or removed by somebody."""
        if job_id is None:
            self._due.clear()
        elif self._due:
            self._changed.add(job_id)

    def take(self, now: datetime, limit: int) -> Batch:
        """At most `limit` due jobs, moved on to their next run time or removed."""
        batch = Batch()
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
                "Error using job store %r; its jobs stay as they are, next try in %g s: %s",
                self.alias,
                self._retry_s,
                error,
                exc_info=True,
            )
        return batch

    def put_back(self, handovers: list[Handover]) -> list[Handover]:
        """What cannot be put back: all of it, because the store has moved on. It is handed over all the same."""
        return handovers

    def _advance(self, now: datetime, limit: int, batch: Batch) -> int:
        taken = 0
        while self._due and taken < limit:
            job = self._due.popleft()
            if job.id in self._changed:
                continue
            taken += 1
            if job.executor not in self._executors:
                self._park(job, f"there is no executor {job.executor!r}: add it")
                continue
            try:
                run_times, following = missed_runs(job, now)
            except Exception as error:
                self._park(job, f"its trigger failed ({error!r}): correct it")
                continue
            if not run_times:
                continue
            try:
                self._move_on(job, following)
            except JobLookupError:
                self._logger.info('Job "%s" was removed before it could run', job.id)
                continue
            run_times, late = in_grace(job, run_times, now)
            if late:
                self._logger.warning('%d run times of job "%s" came too late and are dropped', len(late), job)
            last = following is None
            batch.handovers.append(Handover(without_grace(job), self.alias, run_times, last=last, late=late))
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
            job.next_run_time = before  # a store of live objects must not keep what it refused
            raise

    def _park(self, job: Job, reason: str) -> None:
        """Stock would delete it, or end its loop."""
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
            self._fruitless = 0
            return head.timestamp()
        # A head that is due and yet not given: another owner's, another clock, or a date the store cannot find.
        self._fruitless = min(self._fruitless + 1, 10)
        return now.timestamp() + 2.0**self._fruitless / 1000


def utc_now() -> datetime:
    """This moment, aware."""
    return datetime.now(UTC)
