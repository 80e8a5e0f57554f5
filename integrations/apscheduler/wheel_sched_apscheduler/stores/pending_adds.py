"""Pending adds: jobs that a scheduler adds in its `start` while the store is away.

A job that is given to a scheduler before its start is added by `start` itself, and an error there means that there is
no scheduler. Such jobs are kept until the store answers, and are added then. A job that is added later gets the store's
error.

Threads: `accepts` from the scheduler's thread, under its lock; `add_all` from the settler's.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from apscheduler.jobstores.base import ConflictingIdError
from apscheduler.schedulers.base import STATE_STOPPED

from wheel_sched.errors import WheelSchedError
from wheel_sched_apscheduler.stores.repository import JobRepository


class PendingAdds:
    """See the module.

    Args:
        repository: where the jobs go.
        scheduler: whose start adds the jobs. Defaults to None: nothing is kept.
        logger: where failures are logged. Defaults to None.
    """

    def __init__(self, repository: JobRepository, scheduler: Any = None, logger: Any = None) -> None:
        self._repository = repository
        self._scheduler = scheduler
        self._logger = logger
        self._jobs: deque[tuple[Any, bool]] = deque()  # each with whether it replaces an existing job

    def accepts(self, job: Any) -> bool:
        """Keep a job if a scheduler adds it in its start; whether it is kept.

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
        """The store answers: add the jobs, and wake the scheduler.

        Raises:
            StoreError: the store is away again; what was not added is kept.
        """
        while self._jobs:
            job, replaces = self._jobs[0]
            try:
                try:
                    self._repository.add([job])
                except ConflictingIdError:
                    if not replaces:
                        raise
                    self._repository.update(job)
            except Exception as error:
                if isinstance(error, WheelSchedError) and error.transient:
                    raise
                self._logger.error("Job %r, added before the start, could not be stored: %s", job.id, error)
            self._jobs.popleft()
        if self._scheduler is not None and self._scheduler.running:
            self._scheduler.wakeup()

    def close(self) -> None:
        """Drop what is kept, as a scheduler drops the jobs that it was given if it never starts."""
        if self._jobs:
            ids = ", ".join(repr(job.id) for job, _ in self._jobs)
            self._logger.warning("The store never answered; these jobs were not stored: %s", ids)
            self._jobs.clear()
