"""When a scheduler makes its next pass, and which earlier due times need a wake-up.

Other threads store jobs and report their due times while a pass runs. If the pass has claimed before such a job was
stored, the answer to the claim does not contain the job. So `NextPass` keeps the reports until the pass under way plans
the next pass.

Threads: any thread calls `earlier` and `sooner`; one thread at a time makes a pass.
"""

from __future__ import annotations

import threading
from types import TracebackType


class NextPass:
    """The time of the next pass, in ms since 1970. A `with` block is one pass: it claims, then it calls `plan`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned_ms: int | None = None  # None: no pass was made
        self._in_pass = False
        self._reported_ms: int | None = None  # the earliest due time that was reported during this pass

    def __enter__(self) -> None:
        with self._lock:
            self._in_pass, self._reported_ms = True, None

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        with self._lock:
            self._in_pass = False

    def plan(self, at_ms: int) -> int:
        """Plan the next pass for `at_ms`, or for an earlier due time reported during this pass. Returns the time."""
        with self._lock:
            reported_ms = self._reported_ms
            self._planned_ms = at_ms if reported_ms is None else min(at_ms, reported_ms)
            self._in_pass = False
            return self._planned_ms

    def sooner(self, at_ms: int) -> None:
        """Note that the scheduler makes a pass at `at_ms`, if that is before the planned time."""
        with self._lock:
            if self._planned_ms is not None:
                self._planned_ms = min(self._planned_ms, at_ms)

    def earlier(self, due_ms: int) -> bool:
        """Report a due time. Returns whether to wake the scheduler, because the planned pass is after this time."""
        with self._lock:
            if self._in_pass:
                self._reported_ms = due_ms if self._reported_ms is None else min(self._reported_ms, due_ms)
                return False
            if self._planned_ms is None or due_ms >= self._planned_ms:
                return False
            self._planned_ms = due_ms
            return True
