"""What the kernel reports about a server process: processor time used, and time for which it waited for a processor.

The waiting time is that of the main thread, which serves clients in a Redis or Valkey server. Only Linux reports the
waiting time. Elsewhere it is 0 and all time counts as work, so nothing is subtracted from a figure.
"""

from __future__ import annotations

import time
from pathlib import Path


class Processor:
    """Reads the processor time of another process.

    Args:
        pid: the id of the process.
    """

    def __init__(self, pid: int) -> None:
        folder = Path(f"/proc/{pid}/task/{pid}")
        self._status = folder / "status"
        self._schedstat = folder / "schedstat"
        self._clock = (~pid << 3) | 2  # the value of clock_getcpuclockid(3), a function that Python does not have

    def preemptions(self) -> int:
        """How often another process took the processor away while the main thread had work to do (`status`)."""
        lines = self._status.read_text().splitlines() if self._status.exists() else []
        return sum(int(line.split()[1]) for line in lines if line.startswith("nonvoluntary"))

    def withheld_ns(self) -> int:
        """How long the main thread was ready to run but had no processor, in ns (`schedstat`, second figure)."""
        try:
            return int(self._schedstat.read_bytes().split()[1])
        except FileNotFoundError:
            return 0

    def worked_ns(self) -> int:
        """Processor time of all threads of the process, in ns, without time that a hypervisor took."""
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:
            return time.monotonic_ns()
