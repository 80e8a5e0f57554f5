"""The held tasks that all pages share. They are opened when a page needs them; an absent namespace is not created.

With the running application (`DashboardConfig.extras["celery_app"]`), its own settings name the store. Without it the
store of the dashboard's settings is read, in the namespace "celery" or that of `extras["celery_namespace"]`; an
application without a broker stands in, which knows no tasks.

Threads: any thread may call any method.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from celery import Celery

from wheel_sched.config import Settings
from wheel_sched.dashboard import Dashboard
from wheel_sched.dashboard.opened_later import NotThereYet, OpenedLater
from wheel_sched.errors import NotDone
from wheel_sched.management.neighbours import beside, opened_by_client
from wheel_sched.management.opening import opened
from wheel_sched.store import DelayStore
from wheel_sched_celery.management import HeldTasks
from wheel_sched_celery.settings import WheelSettings
from wheel_sched_celery.wheel import Wheel, wheel_of

NAME = "wheel_sched_celery"
APP, NAMESPACE = "celery_app", "celery_namespace"
NO_APP = (
    "revoking marks results, and for that the dashboard needs the running application: "
    "dashboard(..., celery_app=app), or `celery control revoke`; purging removes a task without marking it"
)
_MADE_BY = "a Celery worker or producer with wheel_sched_celery.install(app)"


class TasksAbsent(NotThereYet):
    """There are no held tasks to show. The message says what to start."""


class OpenedTasks(OpenedLater[HeldTasks]):
    """The held tasks of a dashboard.

    Args:
        dashboard: the dashboard.
    """

    absent = TasksAbsent

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__()
        self._dashboard = dashboard
        self.app: Any = dashboard.config.extras.get(APP)

    @property
    def why_no_revoke(self) -> str:
        """Why this dashboard cannot revoke tasks; "" when it can."""
        return NO_APP if self.app is None else ""

    @property
    def tasks(self) -> HeldTasks:
        """The held tasks; see `get` for the errors."""
        return self.get()

    def _open(self, stack: contextlib.ExitStack) -> HeldTasks:
        core = self._dashboard.loaded.settings
        if self.app is None:
            namespace = self._dashboard.config.extras.get(NAMESPACE) or WheelSettings().namespace
            if core.store == "memory:":  # the program has opened its store itself
                store = beside(self._dashboard.store, namespace, _MADE_BY)
                return HeldTasks(_stand_in(), stack.enter_context(store))
            settings = replace(core, namespace=namespace, shards=None)
            return HeldTasks(_stand_in(), stack.enter_context(opened(settings, made_by=_MADE_BY)))
        wheel = wheel_of(self.app)
        if wheel is None or wheel.settings.url is None:
            raise NotDone(
                f"the application given as {APP} holds no tasks: call wheel_sched_celery.install(app) where it is made"
            )
        return HeldTasks(wheel, stack.enter_context(_store_of(wheel.settings, core)))


def opened_of(dashboard: Dashboard) -> OpenedTasks:
    """What the pages of a dashboard share."""
    found: OpenedTasks = dashboard.opened(NAME)
    return found


def _stand_in() -> Wheel:
    """The integration of an application that stands in for the running one: it reaches no broker and has no tasks."""
    return Wheel(Celery("wheel-sched-dashboard", broker="memory://", set_as_current=False), {"url": None})


def _store_of(wheel: WheelSettings, core: Settings) -> contextlib.AbstractContextManager[DelayStore]:
    """The store of an application, if its namespace exists.

    Raises:
        NotDone: the namespace does not exist.
    """
    if isinstance(wheel.url, str):
        settings = replace(
            core,
            store=wheel.url,
            namespace=wheel.namespace,
            shards=wheel.shards,
            durability=wheel.durability,
            replicas=wheel.replicas,
        )
        return opened(settings, made_by=_MADE_BY)
    return opened_by_client(wheel.url, wheel.namespace, _MADE_BY, wheel.durability, wheel.replicas)
