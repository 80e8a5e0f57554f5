"""What the timers on threads and on asyncio share: handles, recurrence, slack, wall clock, keys; no thread, no loop."""

from __future__ import annotations

from wheel_sched.timing.handle import TimerHandle
from wheel_sched.timing.pending import PendingTimer
from wheel_sched.timing.recurrence import CatchUp, Every
from wheel_sched.timing.task import TimerTask
from wheel_sched.timing.wall import Jump

__all__ = ["CatchUp", "Every", "Jump", "PendingTimer", "TimerHandle", "TimerTask"]
