"""Timers: callbacks after a delay, at a date, or again and again; and the deadline queue, which all of them use.

`SystemTimer` runs callbacks on threads, `AsyncTimer` on an event loop. Both have the methods of `facade`.

    system                `SystemTimer`: a thread sleeps until the next deadline, and threads call the callbacks
    asynchronous          `AsyncTimer`: the event loop waits for the next deadline and calls the callbacks
    facade                the public methods that both share
    handle                one timer: its state, and what its user may do with it
    registry              all timers of one `SystemTimer` or `AsyncTimer`: keys, deadline queues, what is due
    deadlines             dates, slack and recurrence, as pure functions
    queue                 the deadline queue
"""

from wheel_sched.timers.asynchronous import AsyncTimer
from wheel_sched.timers.deadlines import CatchUp, Every, Jump
from wheel_sched.timers.facade import TimerStatistics
from wheel_sched.timers.handle import PendingTimer, TimerHandle, TimerTask
from wheel_sched.timers.queue import DeadlineQueue
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
