"""The timing wheel in the worker's memory. It holds tasks due within the horizon; without a store it holds all."""

from wheel_sched_celery.worker_timer.steps import CollectorStep, WheelTimerStep
from wheel_sched_celery.worker_timer.threaded import ThreadedWheelTimer
from wheel_sched_celery.worker_timer.timer import WheelEntry, WheelTimer

__all__ = ["CollectorStep", "ThreadedWheelTimer", "WheelEntry", "WheelTimer", "WheelTimerStep"]
