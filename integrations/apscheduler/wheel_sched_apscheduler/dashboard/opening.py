"""The jobstore that all pages share. It is opened when a page needs it, and an absent namespace is not created.

Threads: any thread may call any method.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from wheel_sched.dashboard import Dashboard
from wheel_sched.dashboard.opened_later import NotThereYet, OpenedLater
from wheel_sched.errors import NotDone
from wheel_sched.management.neighbours import beside
from wheel_sched_apscheduler.codec.signing import secret_for
from wheel_sched_apscheduler.management.opening import MADE_BY, opened_jobs
from wheel_sched_apscheduler.management.searching import StateCounts, state_counts
from wheel_sched_apscheduler.stores.layout import JOB
from wheel_sched_apscheduler.stores.redis import NAMESPACE, RedisWheelJobStore

NAME = "wheel_sched_apscheduler"
EXTRA = "apscheduler_namespace"
_COUNT_AGAIN_S = 2.0


class JobsAbsent(NotThereYet):
    """There is no jobstore yet. The message says what to start."""


class OpenedJobs(OpenedLater[RedisWheelJobStore]):
    """The jobstore of a dashboard.

    It is in the namespace `extras["apscheduler_namespace"]` of the dashboard's configuration. Without that, it is in
    the namespace that the settings name, if it has or had jobs; else in "apscheduler". The last case is usual: the
    settings of a dashboard for messages name their namespace, and jobs are in another.

    Args:
        dashboard: the dashboard.
    """

    absent = JobsAbsent

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__()
        self._dashboard = dashboard

    @property
    def store(self) -> RedisWheelJobStore:
        """The open jobstore; see `get` for the errors."""
        return self.get()

    def _open(self, stack: contextlib.ExitStack) -> RedisWheelJobStore:
        given = self._dashboard.config.extras.get(EXTRA)
        loaded = self._dashboard.loaded
        named = loaded.settings.namespace if loaded.origins["namespace"] != "default" else NAMESPACE
        if given is None and named != NAMESPACE and self._has_jobs(named):
            given = named
        return stack.enter_context(self._jobs_in(given or NAMESPACE))

    def _has_jobs(self, namespace: str) -> bool:
        """Whether a namespace exists and has, or has had, jobs."""
        try:
            with self._jobs_in(namespace) as found:
                return JOB in found.store.counts().topics
        except NotDone:
            return False

    @contextlib.contextmanager
    def _jobs_in(self, namespace: str) -> Iterator[RedisWheelJobStore]:
        loaded = self._dashboard.loaded
        if loaded.settings.store == "memory:":  # the program has opened its store itself
            with beside(self._dashboard.store, namespace, MADE_BY) as store:
                yield RedisWheelJobStore(store=store, namespace=namespace, secret=secret_for(None))
        else:
            there = replace(loaded, values={**loaded.values, "namespace": namespace, "shards": None})
            there = replace(there, origins={**loaded.origins, "namespace": "argument"})
            with opened_jobs(there) as jobs:
                yield jobs

    def counts(self) -> StateCounts:
        """How many jobs there are in each state. The visitors share one count, which is at most two seconds old."""
        return self._dashboard.recent.get("job states", _COUNT_AGAIN_S, lambda: state_counts(self.store))


def opened_of(dashboard: Dashboard) -> OpenedJobs:
    """What the pages of a dashboard share."""
    found: OpenedJobs = dashboard.opened(NAME)
    return found
