"""`WheelTimerStep`: the worker's bootstep that replaces kombu's heap by a timing wheel, in every pool.

It runs when worker and hub are built and nothing has started: after Timer and Hub, before Pool starts and before the
consumer takes the timer. Celery has no setting for the event loop's timer, so only a step can replace it without a
patch.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger

from wheel_sched_celery.wheel import wheel_of
from wheel_sched_celery.worker_timer.threaded import GREEN_SPAWN, ThreadedWheelTimer
from wheel_sched_celery.worker_timer.timer import WheelTimer

logger = get_logger(__name__)


class WheelTimerStep(bootsteps.Step):
    """Gives the worker a `WheelTimer` (event loop) or a `ThreadedWheelTimer` (all others)."""

    requires = ("celery.worker.components:Timer", "celery.worker.components:Hub")

    def include_if(self, w: Any) -> bool:
        """Not with `horizon=None`: `install` then leaves everything to stock Celery."""
        wheel = wheel_of(w.app)
        return wheel is None or wheel.settings.horizon is not None

    def create(self, w: Any) -> None:
        """Replace the worker's timer. What waits in the old timer moves to the new one."""
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
