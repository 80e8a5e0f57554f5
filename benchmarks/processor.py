"""What the kernel says of a server and its processor: how long it worked, how long and how often it could not.

Waiting and losing are those of the main thread, which in a Redis or Valkey server is the one that serves. Linux alone
tells; elsewhere nothing was withheld and all time is work, so that nothing is taken off any figure.
"""

from __future__ import annotations

import time
from pathlib import Path


class Processor:
    """What a process got of its processor, seen from another process.

    Args:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        folder = Path(f"/proc/{pid}/task/{pid}")
        self._status = folder / "status"
        self._schedstat = folder / "schedstat"
        self._clock = (~pid << 3) | 2  # as clock_getcpuclockid(3) makes it, which Python does not have

    def preemptions(self) -> int:
        """How often it had to give its processor to somebody else although it had more to do (`status`)."""
        lines = self._status.read_text().splitlines() if self._status.exists() else []
        return sum(int(line.split()[1]) for line in lines if line.startswith("nonvoluntary"))

    def withheld_ns(self) -> int:
        """How long it has been ready to run without a processor, in nanoseconds (`schedstat`, the second figure)."""
        try:
            return int(self._schedstat.read_bytes().split()[1])
        except FileNotFoundError:
            return 0

    def worked_ns(self) -> int:
        """How long all threads of it have run until now, in nanoseconds: without what a hypervisor took."""
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:
            return time.monotonic_ns()
