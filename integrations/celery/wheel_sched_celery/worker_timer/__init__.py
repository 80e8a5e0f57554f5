"""The timing wheel in the worker's memory. Tasks due within the horizon wait in it. Without a store, all do.

With `horizon=None` there is no wheel.
"""

from wheel_sched_celery.worker_timer.steps import CollectorStep, WheelTimerStep
from wheel_sched_celery.worker_timer.threaded import ThreadedWheelTimer
from wheel_sched_celery.worker_timer.timer import WheelEntry, WheelTimer

__all__ = ["CollectorStep", "ThreadedWheelTimer", "WheelEntry", "WheelTimer", "WheelTimerStep"]
