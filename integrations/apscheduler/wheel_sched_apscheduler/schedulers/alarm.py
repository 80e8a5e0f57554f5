"""Alarm: lets its owner, the scheduler's loop, sleep until the earliest requested moment.

Code that stores a job calls `ring_by` with the job's next run time. If the owner wakes earlier anyway, this changes
nothing. If the owner is awake, the request counts for its next sleep, so no request is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LOOK_AGAIN_S = 30.0  # within this time the owner notices a wall clock set forward; a check costs no store call
_AWAKE = float("-inf")
_NEVER = float("inf")


class Alarm:
    """Wakes its owner, the thread that calls `sleep`. Any thread may call `ring` or `ring_by`, which shorten a sleep.

    Args:
        now: wall clock in seconds. Defaults to `time.time`.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._changed = threading.Condition(threading.Lock())
        self._until = _AWAKE
        self._asked = _NEVER

    def ring(self) -> None:
        """Wake the owner now; if it is awake, its next sleep ends at once."""
        self.ring_by(_AWAKE)

    def ring_by(self, at: float) -> None:
        """Wake the owner at `at` (seconds since 1970) at the latest."""
        with self._changed:
            self._asked = min(self._asked, at)
            if at < self._until:
                self._changed.notify()

    def sleep(self, until: float) -> None:
        """Sleep until `until` (seconds since 1970), or less if `ring` or `ring_by` was called since the last sleep."""
        with self._changed:
            while True:
                self._until = min(until, self._asked)
                left_s = self._until - self._now()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, _LOOK_AGAIN_S))
            self._until = _AWAKE
            self._asked = _NEVER
