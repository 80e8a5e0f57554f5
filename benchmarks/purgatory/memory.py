"""The memory of this process. On Linux from /proc: `ru_maxrss` would count the parent's, which it was forked from."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """The most that was ever resident."""
    return _field("VmHWM")


def resident_bytes() -> int:
    """What is resident now; where that cannot be had, the most there ever was."""
    return _field("VmRSS")


def _field(name: str) -> int:
    try:
        text = _STATUS.read_text("ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
