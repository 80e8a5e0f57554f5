"""Schedulers that submit jobs in batches. They replace APScheduler's own, and work with any jobstore."""

from wheel_sched_apscheduler.schedulers.background import WheelBackgroundScheduler, WheelBlockingScheduler
from wheel_sched_apscheduler.schedulers.event_loop import WheelAsyncIOScheduler

__all__ = ["WheelAsyncIOScheduler", "WheelBackgroundScheduler", "WheelBlockingScheduler"]
