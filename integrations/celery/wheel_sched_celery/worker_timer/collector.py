"""`CollectorStep`: keeps Python's garbage collector from holding up tasks that are due.

A full collection looks at every object, and a Celery worker has some hundred thousand from its imports alone: it stands
still for some 50 ms, again and again for objects that live as long as it does. They are put aside once the worker is
built, before the pool forks, and once more before it consumes; a full collection then looks at what tasks have made.
For pool processes that also means pages that stay shared with their parent.

Source: `gc.freeze`, made for servers that fork.
"""

from __future__ import annotations

import gc
from typing import Any

from celery import bootsteps

from wheel_sched_celery.wheel import wheel_of


class CollectorStep(bootsteps.StartStopStep):
    """Puts what the worker is made of beyond the garbage collector."""

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
    gc.collect()  # what is garbage already would never be freed
    gc.freeze()
