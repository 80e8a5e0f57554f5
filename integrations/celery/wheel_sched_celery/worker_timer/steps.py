"""The worker's bootsteps for its timer and for Python's garbage collector.

With `horizon=None` neither bootstep runs: stock Celery then does everything.
"""

from __future__ import annotations

import gc
from typing import Any

from celery import bootsteps
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger

from wheel_sched_celery.wheel import wheel_of
from wheel_sched_celery.worker_timer.threaded import GREEN_SPAWN, ThreadedWheelTimer
from wheel_sched_celery.worker_timer.timer import WheelTimer

logger = get_logger(__name__)


class WheelTimerStep(bootsteps.Step):
    """Replaces the worker's timer, a heap of kombu, by a timing wheel.

    A worker with an event loop gets a `WheelTimer`, any other worker a `ThreadedWheelTimer`, unless the app has set
    `worker_timer`. The step runs when timer and hub exist, and before the pool starts and the consumer reads the timer.
    A step is needed because Celery has no setting for the event loop's timer.
    """

    requires = ("celery.worker.components:Timer", "celery.worker.components:Hub")

    def include_if(self, w: Any) -> bool:
        return _has_horizon(w.app)

    def create(self, w: Any) -> None:
        """Replace the worker's timer. With an event loop, what waits in the old timer moves to the new one."""
        if w.use_eventloop:
            timer = WheelTimer(max_interval=w.timer.max_interval)
            for old in {id(old): old for old in (w.timer, w.hub.timer)}.values():
                timer.adopt(old)
            w.timer = w.hub.timer = timer
            w.hub.__dict__.pop("scheduler", None)  # the hub caches the iterator of the timer it had
        elif w.app.conf.worker_timer:
            logger.info("worker_timer is set to %r: it stays, the wheel is not used", w.app.conf.worker_timer)
        else:
            w.timer.stop()
            w.timer = ThreadedWheelTimer(
                spawn=_spawn_of(w.pool_cls),
                max_interval=w.timer_precision,
                on_error=_log_error,
                on_tick=_log_tick,
            )


def _spawn_of(pool_cls: type[Any]) -> Any:
    """The function that starts a greenlet in a green pool; None in other pools."""
    target = GREEN_SPAWN.get(pool_cls.__module__.rpartition(".")[2])
    return None if target is None else symbol_by_name(target)


def _log_error(error: Exception) -> None:
    logger.error("Timer error: %r", error, exc_info=True)


def _log_tick(delay_s: float) -> None:
    logger.debug("Timer wake-up! Next ETA %s secs.", delay_s)


class CollectorStep(bootsteps.StartStopStep):
    """Keeps Python's garbage collector from delaying tasks that are due.

    A full collection looks at every object. A Celery worker has some hundred thousand objects from its imports alone.
    They live as long as the worker, and with them a full collection stops the worker for some 50 ms. This step excludes
    these objects from collections: when the worker is built, before the pool forks, and again before the worker
    consumes. A full collection then looks only at objects that tasks have made. Pool processes also keep more memory
    pages in common with their parent. The step uses `gc.freeze`, which Python has for servers that fork.
    """

    requires = ("celery.worker.components:Pool",)

    def include_if(self, w: Any) -> bool:
        return _has_horizon(w.app)

    def create(self, w: Any) -> CollectorStep:
        _freeze()
        return self

    def start(self, w: Any) -> None:
        _freeze()

    def stop(self, w: Any) -> None:
        """Do nothing: the process ends."""

    terminate = stop

    def info(self, w: Any) -> dict[str, Any]:
        return {"wheel_collector": {"frozen_objects": gc.get_freeze_count()}}


def _freeze() -> None:
    gc.collect()  # garbage that is frozen would never be freed
    gc.freeze()


def _has_horizon(app: Any) -> bool:
    wheel = wheel_of(app)
    return wheel is None or wheel.settings.horizon is not None
