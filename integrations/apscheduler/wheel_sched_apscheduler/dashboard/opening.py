"""The jobstore that all pages share. It is opened when a page needs it, and an absent namespace is not created.

Threads: any thread may call any method.
"""

from __future__ import annotations

import contextlib
import threading
import time

from wheel_sched.dashboard import Dashboard, NotFound
from wheel_sched.errors import NotDone
from wheel_sched_apscheduler.codec.signing import secret_for
from wheel_sched_apscheduler.management.opening import opened_jobs
from wheel_sched_apscheduler.management.searching import StateCounts, state_counts
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

NAME = "wheel_sched_apscheduler"
_ASK_AGAIN_S = 3.0  # an absent namespace is looked for at most so often
_COUNT_AGAIN_S = 2.0


class JobsAbsent(NotFound):
    """There is no jobstore yet. The message says what to start."""


class OpenedJobs:
    """The jobstore of a dashboard's settings: in their namespace when they name one, else in "apscheduler".

    A store in memory lives in this process only, so the jobstore is in the dashboard's own store then.

    Args:
        dashboard: the dashboard.
    """

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._store: RedisWheelJobStore | None = None
        self._absent, self._absent_until_s = "", 0.0
        self._counts: tuple[float, StateCounts] | None = None

    @property
    def store(self) -> RedisWheelJobStore:
        """The open jobstore.

        Raises:
            JobsAbsent: there is no such namespace; it was not created.
            StoreError: the store does not answer.
        """
        with self._lock:
            if self._store is None:
                self._store = self._opened()
            return self._store

    def _opened(self) -> RedisWheelJobStore:
        if time.monotonic() < self._absent_until_s:
            raise JobsAbsent(self._absent)
        loaded = self._dashboard.loaded
        if loaded.settings.store == "memory:":
            return RedisWheelJobStore(store=self._dashboard.store, secret=secret_for(None))
        try:
            return self._stack.enter_context(opened_jobs(loaded))
        except NotDone as error:
            self._absent, self._absent_until_s = str(error), time.monotonic() + _ASK_AGAIN_S
            raise JobsAbsent(self._absent) from error

    def counts(self) -> StateCounts:
        """How many jobs there are in each state, not older than two seconds: several visitors share one count."""
        store = self.store
        kept = self._counts
        if kept is None or time.monotonic() >= kept[0]:
            kept = (time.monotonic() + _COUNT_AGAIN_S, state_counts(store))
            self._counts = kept
        return kept[1]

    def close(self) -> None:
        """Close the jobstore. Idempotent."""
        with self._lock:
            self._store = None
            self._stack.close()


def opened_of(dashboard: Dashboard) -> OpenedJobs:
    """What the pages of a dashboard share."""
    found: OpenedJobs = dashboard.opened(NAME)
    return found
