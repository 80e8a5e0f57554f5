"""`CollectorStep`: keeps Python's garbage collector from delaying tasks that are due.

A full collection visits every object. The imports of a Celery worker alone make some hundred thousand objects, so a
full collection stops the worker for some 50 ms, again and again, for objects that live as long as the worker. This step
freezes them (`gc.freeze`) before the pool forks, and once more before the worker consumes. A full collection then
visits the objects of tasks only. The processes of the pool also share more memory pages with their parent.

Source: `gc.freeze`, made for servers that fork.
"""

from __future__ import annotations

import gc
from typing import Any

from celery import bootsteps

from wheel_sched_celery.wheel import wheel_of


class CollectorStep(bootsteps.StartStopStep):
    """Freezes the objects that the worker is made of."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, w: Any) -> bool:
        """Not where `install` was told to leave everything to stock (`horizon=None`)."""
        wheel = wheel_of(w.app)
        return wheel is None or wheel.settings.horizon is not None

    def create(self, w: Any) -> CollectorStep:
        _put_aside()
        return self

    def start(self, w: Any) -> None:
        _put_aside()

    def stop(self, w: Any) -> None:
        """Nothing: the process ends."""

    terminate = stop

    def info(self, w: Any) -> dict[str, Any]:
        return {"wheel_collector": {"put_aside": gc.get_freeze_count()}}


def _put_aside() -> None:
    gc.collect()  # else garbage would be frozen too, and never be freed
    gc.freeze()
