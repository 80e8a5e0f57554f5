"""Liveness and readiness, two questions of a process supervisor.

Liveness is about this process only: a restart helps when a thread has ended, or when the dispatcher's own thread hangs
in one step. A `HeartbeatMonitor` watches the steps of the dispatcher's threads. A liveness probe that also asked the
store would turn an outage of the store into a storm of restarts. Readiness says whether the process does its work now.
Readiness fails while the store is away, and recovers by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Watched(Protocol):
    """A part of the process that can be probed, such as a dispatcher or a retry service.

    Threads: any thread may call the methods. They do no I/O.
    """

    def problems(self) -> list[str]:
        """The problems that a restart would solve, in words; empty when there are none."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the part has started, and the servers that it depends on answer."""
        ...


def dead_parts(parts: Mapping[str, Watched]) -> list[str]:
    """The problems of all parts that a restart would solve, one line for each problem; empty when there are none."""
    return [f"{name}: {problem}" for name, part in parts.items() for problem in part.problems()]


def unready_parts(parts: Mapping[str, Watched]) -> list[str]:
    """One line for each part that is not ready; empty when all are ready."""
    return [
        f"{name}: not started, or the store or the broker is away" for name, part in parts.items() if not part.ready
    ]
