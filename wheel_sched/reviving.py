"""A thread that starts its work again after an error, with a growing delay, and logs the error.

Invariant: the thread ends only when the work returns, or when the work fails after `stopping` was set. Every exception
counts as an error, also `SystemExit`, which in a thread would not end the process but only the thread.

The thread costs nothing while the work succeeds. Any thread may read `down` and `works`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wheel_sched.escaping import logger_of

logger = logger_of("wheel_sched.threads")

_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_WELL_S = 10.0  # after work that lasted this long the next delay is the shortest again


class RevivedThread(threading.Thread):
    """A daemon thread that restarts its work after an error.

    Args:
        work: what the thread does.
        name: name of the thread.
        stopping: an event that is set when the work must end.
    """

    def __init__(self, work: Callable[[], None], name: str, stopping: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._stopping = stopping
        self.down = False  # the work has failed and waits for its next start

    def run(self) -> None:
        """Overrides `threading.Thread.run`."""
        failures = 0
        while True:
            self.down = False
            began_s = time.monotonic()
            try:
                self._work()
                return
            except BaseException:
                logger.exception("thread.died: %s starts again", self.name)
            if self._stopping.is_set():
                return
            self.down = True
            failures = 0 if time.monotonic() - began_s >= _WELL_S else failures
            self._stopping.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
            failures += 1

    @property
    def works(self) -> bool:
        """Whether the work runs; False also while it waits for its next start."""
        return self.is_alive() and not self.down
