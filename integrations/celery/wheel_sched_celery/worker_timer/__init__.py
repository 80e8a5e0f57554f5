"""The timing wheel in the worker's memory. It holds tasks due within the horizon; without a store it holds all.

`install(app)` is the whole set-up. It needs no Redis.
"""

from __future__ import annotations

from typing import Any

from wheel_sched_celery.worker_timer.collector import CollectorStep
from wheel_sched_celery.worker_timer.step import WheelTimerStep
from wheel_sched_celery.worker_timer.threaded import ThreadedWheelTimer
from wheel_sched_celery.worker_timer.timer import WheelEntry, WheelTimer

__all__ = ["CollectorStep", "ThreadedWheelTimer", "WheelEntry", "WheelTimer", "WheelTimerStep", "install"]


def install(app: Any) -> None:
    """Let the workers of `app` keep their timers in a timing wheel. Call it before the worker is made. Idempotent."""
    app.steps["worker"].update((WheelTimerStep, CollectorStep))
