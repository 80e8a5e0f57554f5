"""Liveness and readiness, kept apart as a supervisor needs them.

Liveness is local: a thread that has ended, or one turn of it that does not end, is mended by a restart, and nothing
else is. A probe that also asked the store would turn its outage into a storm of restarts. Readiness says whether work
is getting done now: it fails while the store is away and comes back by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

STUCK_AFTER_S = 60.0
"""A turn that lasts longer is stuck: every call a turn makes is bounded by a few seconds."""


class Watched(Protocol):
    """What can be probed: a dispatcher, a retry service. Both members from any thread, without I/O."""

    @property
    def turn_s(self) -> float | None:
        """Seconds the present turn has lasted, 0 while there is nothing to do; None: its thread has ended."""
        ...

    @property
    def ready(self) -> bool:
        """It has begun, and its last call on the store was answered."""
        ...


def dead_parts(parts: Mapping[str, Watched], *, stuck_after_s: float = STUCK_AFTER_S) -> list[str]:
    """What a restart would mend, in words; empty when all is well."""
    found = []
    for name, part in parts.items():
        turn_s = part.turn_s
        if turn_s is None:
            found.append(f"{name}: its thread has ended")
        elif turn_s > stuck_after_s:
            found.append(f"{name}: stuck for {turn_s:.0f} s")
    return found


def unready_parts(parts: Mapping[str, Watched]) -> list[str]:
    """What is not working now, in words; empty when all is well."""
    return [f"{name}: not started, or the store is away" for name, part in parts.items() if not part.ready]
