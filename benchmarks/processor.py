"""What the kernel says of a process and its processor: how often it was taken away, how long it was withheld.

Of the main thread, which in a Redis or Valkey server is the one that serves. Linux alone tells; elsewhere both are 0,
so that nothing is taken off any figure.
"""

from __future__ import annotations

from pathlib import Path


class MainThread:
    """The main thread of a process, seen from another one.

    Args:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        folder = Path(f"/proc/{pid}/task/{pid}")
        self._status = folder / "status"
        self._schedstat = folder / "schedstat"

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
