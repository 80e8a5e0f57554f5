"""A thread that does not stay dead: work that ends by an error is logged and begun anew, after a growing delay.

Invariant: the work ends for good when it returns, or when it fails after `stopping` was set. Whatever it raises counts
as an error, `SystemExit` too: in a thread of ours it ends nothing but the thread.

Cost: nothing while the work goes well. `down` may be read from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wheel_sched.escaping import logger_of

logger = logger_of("wheel_sched.threads")

_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_WELL_S = 10.0  # work that lasted so long begins with the shortest delay again


class RevivedThread(threading.Thread):
    """A daemon thread, see the module.

    Args:
        work: what it does.
        name: of the thread.
        stopping: set when the work is to end.
    """

    def __init__(self, work: Callable[[], None], name: str, stopping: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._stopping = stopping
        self.down = False  # it died, and waits until it begins anew

    def run(self) -> None:
        """See `threading.Thread`."""
        failures = 0
        while True:
            self.down = False
            began_s = time.monotonic()
            try:
                self._work()
                return
            except BaseException:
                logger.exception("thread.died: %s begins anew", self.name)
            if self._stopping.is_set():
                return
            self.down = True
            failures = 0 if time.monotonic() - began_s >= _WELL_S else failures
            self._stopping.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
            failures += 1

    @property
    def works(self) -> bool:
        """Whether it runs and is not waiting to begin anew."""
        return self.is_alive() and not self.down
