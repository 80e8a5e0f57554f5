"""Timers: callbacks after a delay, at a date, or again and again; and the deadline queue under every driver.

`SystemTimer` runs callbacks on threads, `AsyncTimer` on an event loop. Both have the same methods.
"""

from wheel_sched.timers.asynchronous import AsyncTimer
from wheel_sched.timers.deadlines import Jump
from wheel_sched.timers.facade import TimerStatistics
from wheel_sched.timers.queue import DeadlineQueue
from wheel_sched.timers.recurrence import CatchUp, Every
from wheel_sched.timers.registry import PendingTimer, TimerHandle, TimerTask
from wheel_sched.timers.system import SystemTimer

__all__ = [
    "AsyncTimer",
    "CatchUp",
    "DeadlineQueue",
    "Every",
    "Jump",
    "PendingTimer",
    "SystemTimer",
    "TimerHandle",
    "TimerStatistics",
    "TimerTask",
]
