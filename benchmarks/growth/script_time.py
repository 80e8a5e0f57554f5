"""The time that servers spend in scripts, by their own count, and how fast a server computes at the moment.

The time comes from the server's slow log, which records each call while it is watched. A call in which another process
took the processor away counts its waiting too; the median of many calls hardly does.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from types import TracebackType
from typing import Any, Self

_LOGGED = 100_000  # more calls than a measurement has
_LOOP = "local sum = 0 for n = 1, 20000 do sum = sum + n % 7 end return sum"
_LOOPS = 40


class ScriptTime:
    """Watches the scripts of servers while its `with` block runs.

    Args:
        clients: a redis-py client of each server.
    """

    def __init__(self, *clients: Any) -> None:
        self._clients = clients
        self._calls_us: list[list[int]] = []

    @property
    def each_us(self) -> list[int]:
        """How long each server was in scripts, in microseconds."""
        return [sum(calls) for calls in self._calls_us]

    @property
    def us(self) -> int:
        """How long all servers were in scripts, in microseconds."""
        return sum(self.each_us)

    @property
    def typical_us(self) -> float:
        """The median time of a call."""
        return median(call for calls in self._calls_us for call in calls)

    def __enter__(self) -> Self:
        for client in self._clients:
            client.config_set("slowlog-max-len", _LOGGED)
            client.config_set("slowlog-log-slower-than", 0)
            client.slowlog_reset()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls_us = []
        for client in self._clients:
            client.config_set("slowlog-log-slower-than", -1)
            entries: Any = client.slowlog_get(_LOGGED)
            names = ((entry["command"].upper(), entry["duration"]) for entry in entries)
            self._calls_us.append([duration for name, duration in names if name.startswith((b"FCALL", b"EVAL"))])


class Pace:
    """How fast a server computes at each size: the time of a script with a fixed loop.

    On a shared machine the speed changes within seconds. `even` takes this out of the times of a case.

    Args:
        client: a redis-py client of the server.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._loops_us: dict[int, list[float]] = {}

    def look(self, size: int) -> None:
        """Run the loop now. Looks before, between and after the measurements of a size belong to this size."""
        with ScriptTime(self._client) as looping:
            for _ in range(_LOOPS):
                self._client.eval(_LOOP, 0)
        self._loops_us.setdefault(size, []).append(looping.typical_us)

    def even(self, points: dict[str, dict[int, float]], keys: Iterable[str]) -> None:
        """Scale the times of these quantities to the typical pace of all sizes."""
        typical = median(median(loops) for loops in self._loops_us.values())
        for key in keys:
            for size, loops in self._loops_us.items():
                points[key][size] *= typical / median(loops)
