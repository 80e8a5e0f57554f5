"""The memory of this process, in bytes.

On Linux the numbers come from /proc, because `ru_maxrss` would include memory of the parent before the fork.
"""

from __future__ import annotations

import resource
import sys
import tracemalloc
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """The largest resident memory so far."""
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return _field("VmHWM")


def resident_bytes() -> int:
    """The resident memory now. Without /proc: the memory that Python has allocated since the first call."""
    if _STATUS.exists():
        return _field("VmRSS")
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    return tracemalloc.get_traced_memory()[0]


def _field(name: str) -> int:
    (line,) = (line for line in _STATUS.read_text("ascii").splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
