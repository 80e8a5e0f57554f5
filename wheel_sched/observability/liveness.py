"""Liveness and readiness, kept apart as a supervisor needs them.

Liveness is local: a thread that has ended, or one turn of it that does not end, is mended by a restart, and nothing
else is; turns are watched with a `HeartbeatMonitor`, see `wheel_sched.dispatcher.pulse`. A probe that also asked the
store would turn its outage into a storm of restarts. Readiness says whether work is getting done now: it fails while
the store is away and comes back by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Watched(Protocol):
    """What can be probed: a dispatcher, a retry service. Both members from any thread, without I/O."""

    def ailing(self) -> list[str]:
        """What of it a restart would mend, in words; empty when all is well."""
        ...

    @property
    def ready(self) -> bool:
        """It has begun, and what it depends on answers."""
        ...


def dead_parts(parts: Mapping[str, Watched]) -> list[str]:
    """What a restart would mend, in words; empty when all is well."""
    return [f"{name}: {problem}" for name, part in parts.items() for problem in part.ailing()]


def unready_parts(parts: Mapping[str, Watched]) -> list[str]:
    """What is not working now, in words; empty when all is well."""
    return [
        f"{name}: not started, or the store or the broker is away" for name, part in parts.items() if not part.ready
    ]
