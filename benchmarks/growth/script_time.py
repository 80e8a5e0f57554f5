"""The time that servers spend in scripts, by their own count, and how fast a server computes at the moment.

If another process takes the processor away during a call, the server counts the wait too. The median of many calls
hardly includes such waits. The slow log is no alternative: it records each command within a script, which makes scripts
longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from types import TracebackType
from typing import Any, Self

_SCRIPTS = ("fcall", "fcall_ro", "eval")
_LOOP = "local sum = 0 for n = 1, 20000 do sum = sum + n % 7 end return sum"
_LOOPS = 40


class ScriptTime:
    """Counts the scripts of servers while its `with` block runs. It begins by resetting the servers' statistics.

    Args:
        clients: a redis-py client of each server.
    """

    def __init__(self, *clients: Any) -> None:
        self._clients = clients
        self.each_us: list[int] = []
        self.typical_us = 0.0

    @property
    def us(self) -> int:
        """How long all servers were in scripts, in microseconds; `each_us` has that of each server."""
        return sum(self.each_us)

    def __enter__(self) -> Self:
        for client in self._clients:
            client.config_resetstat()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = [_scripts_of(client) for client in self._clients]
        self.each_us = [sum(spent_us for _, spent_us, _ in scripts) for scripts in found]
        calls = [script for scripts in found for script in scripts]
        _, _, self.typical_us = max(calls, default=(0, 0, 0.0))


def _scripts_of(client: Any) -> list[tuple[int, int, float]]:
    """For each kind of script call: how many calls, their time and the median time of a call, in microseconds."""
    info: Any = client.info("commandstats", "latencystats")
    return [
        (int(stats["calls"]), int(stats["usec"]), float(info[f"latency_percentiles_usec_{name}"]["p50"]))
        for name in _SCRIPTS
        if (stats := info.get(f"cmdstat_{name}"))
    ]


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
        """Run the loop now, for this size. Call it before, between and after the measurements of the size."""
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
