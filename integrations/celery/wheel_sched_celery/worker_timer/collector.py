"""`CollectorStep`: keeps Python's garbage collector from delaying tasks that are due.

A full collection looks at every object. A Celery worker has some hundred thousand objects from its imports alone, which
live as long as the worker, and each full collection stops the worker for some 50 ms. This step puts them aside when the
worker is built, before the pool forks, and again before the worker consumes. A full collection then looks only at
objects that tasks have made. Pool processes also keep more memory pages in common with their parent.

Source: `gc.freeze`, made for servers that fork.
"""

from __future__ import annotations

import gc
from typing import Any

from celery import bootsteps

from wheel_sched_celery.wheel import wheel_of


class CollectorStep(bootsteps.StartStopStep):
    """Keeps the garbage collector away from the objects that the worker is made of."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, w: Any) -> bool:
        """Not with `horizon=None`: `install` then leaves everything to stock Celery."""
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
    gc.collect()  # first: garbage that is put aside would never be freed
    gc.freeze()
