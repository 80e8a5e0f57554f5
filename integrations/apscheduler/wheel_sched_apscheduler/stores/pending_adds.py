"""The waiting room: jobs that a scheduler adds in its `start` while the store is away.

What is given to a scheduler before its start is added by `start` itself, in its own thread; an error there means that
there is no scheduler. So such jobs are kept until the store answers, and are added then, as `start` would have done.
A job that is added later gets the store's error.

Threads. `takes` by the scheduler's, under its lock; `let_in` by the keeper's.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from apscheduler.jobstores.base import ConflictingIdError
from apscheduler.schedulers.base import STATE_STOPPED

from wheel_sched.errors import WheelSchedError

if TYPE_CHECKING:
    from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore


class WaitingRoom:
    """See the module; `home` is the jobstore it belongs to."""

    def __init__(self, home: RedisWheelJobStore) -> None:
        self._home = home
        self._jobs: deque[tuple[Any, bool]] = deque()  # with whether it replaces one that exists

    def takes(self, job: Any) -> bool:
        """Keep a job if it is one of those that a scheduler adds in its start.

        Raises:
            NotSerializable, Forbidden: it could not be stored.
        """
        scheduler = self._home._scheduler
        if getattr(scheduler, "state", None) != STATE_STOPPED:
            return False
        for pending, _, replaces in getattr(scheduler, "_pending_jobs", ()):
            if pending is job:
                self._home.codec.encode(job)
                self._jobs.append((job, bool(replaces)))
                return True
        return False

    def let_in(self) -> None:
        """The store is there: add what waits, and have the scheduler look.

        Raises:
            StoreError: it is away again; what was not added waits on.
        """
        home = self._home
        while self._jobs:
            job, replaces = self._jobs[0]
            try:
                try:
                    home._shelf.add([job])
                except ConflictingIdError:
                    if not replaces:
                        raise
                    home._shelf.update(job)
            except Exception as error:
                if isinstance(error, WheelSchedError) and error.transient:
                    raise
                home._logger.error("Job %r, added before the start, could not be stored: %s", job.id, error)
            self._jobs.popleft()
        scheduler = home._scheduler
        if scheduler is not None and scheduler.running:
            scheduler.wakeup()

    def close(self) -> None:
        """What still waits is lost, as is what was given to a scheduler that never started."""
        if self._jobs:
            ids = ", ".join(repr(job.id) for job, _ in self._jobs)
            self._home._logger.warning("The store never answered; these jobs were not stored: %s", ids)
            self._jobs.clear()
