"""WheelBackgroundScheduler runs in a new thread, WheelBlockingScheduler in the caller's thread."""

from __future__ import annotations

import threading

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.schedulers.blocking import BlockingScheduler

from wheel_sched_apscheduler.schedulers.scheduler import WheelScheduler


class WheelBlockingScheduler(WheelScheduler, BlockingScheduler):
    """Replaces `BlockingScheduler`: `start` returns after a `shutdown` from another thread or a job.

    See `WheelScheduler` for its settings. An interrupt (Ctrl-C) ends the loop, and `start` raises KeyboardInterrupt.
    `running` is then False. Call `shutdown` to end executors and job stores.
    """

    def start(self, paused: bool = False) -> None:
        """Run the loop until another thread or a job calls `shutdown`.

        Raises:
            SchedulerAlreadyRunningError: the scheduler was started before and not shut down.
        """
        self._before_start()
        BaseScheduler.start(self, paused)
        self._main_loop()


class WheelBackgroundScheduler(WheelScheduler, BackgroundScheduler):
    """Replaces `BackgroundScheduler`, and accepts its setting `daemon`. See `WheelScheduler` for other settings."""

    def start(self, paused: bool = False) -> None:
        """Start the loop's thread and return.

        Raises:
            SchedulerAlreadyRunningError: the scheduler was started before and not shut down.
        """
        self._before_start()
        BaseScheduler.start(self, paused)
        self._owner = threading.Thread(target=self._main_loop, name="APScheduler", daemon=self._daemon)
        self._owner.start()
