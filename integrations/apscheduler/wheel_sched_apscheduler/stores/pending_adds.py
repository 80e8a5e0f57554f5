"""Pending adds: jobs that a scheduler adds in its `start` while the store does not answer.

A scheduler's `start` adds the jobs that the application gave it before. If the store raised an error then, the
scheduler would not start. So this module keeps these jobs, and adds them when the store answers. If the application
adds a job after the start, it gets the store's error.

Threads: the scheduler's thread calls `accepts`, under its lock; the settler's thread calls `add_all`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from apscheduler.schedulers.base import STATE_STOPPED

from wheel_sched.errors import WheelSchedError
from wheel_sched_apscheduler.stores.repository import JobRepository


class PendingAdds:
    """The jobs that a scheduler's `start` has added and the store does not have yet.

    Args:
        repository: stores the jobs.
        scheduler: the scheduler whose start adds the jobs. Defaults to None: no job is kept.
        logger: logs failures. Defaults to None.
    """

    def __init__(self, repository: JobRepository, scheduler: Any = None, logger: Any = None) -> None:
        self._repository = repository
        self._scheduler = scheduler
        self._logger = logger
        self._jobs: deque[tuple[Any, bool]] = deque()  # each with whether it replaces an existing job

    def accepts(self, job: Any) -> bool:
        """Keep a job if the scheduler's `start` adds it. Returns whether the job is kept.

        Raises:
            NotSerializable, Forbidden: the job cannot be stored.
        """
        if self._scheduler is None or getattr(self._scheduler, "state", None) != STATE_STOPPED:
            return False
        for pending, _, replaces in getattr(self._scheduler, "_pending_jobs", ()):
            if pending is job:
                self._repository.check(job)
                self._jobs.append((job, bool(replaces)))
                return True
        return False

    def add_all(self) -> None:
        """Add the kept jobs and wake the scheduler. The settler's thread calls this when the store answers.

        Raises:
            StoreError: the store stopped answering. Jobs that were not added are kept.
        """
        while self._jobs:
            job, replaces = self._jobs[0]
            try:
                self._repository.add(job, replace_existing=replaces)
            except Exception as error:
                if isinstance(error, WheelSchedError) and error.transient:
                    raise
                self._logger.error("Job %r, added before the start, could not be stored: %s", job.id, error)
            self._jobs.popleft()
        if self._scheduler is not None and self._scheduler.running:
            self._scheduler.wakeup()

    def close(self) -> None:
        """Drop the kept jobs, as a scheduler that never starts drops its jobs."""
        if self._jobs:
            ids = ", ".join(repr(job.id) for job, _ in self._jobs)
            self._logger.warning("The store never answered; these jobs were not stored: %s", ids)
            self._jobs.clear()
