"""The time that a server spends in scripts, by its own count."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from benchmarks.server import BenchServer


class ScriptTime:
    """Counts the time in scripts while its `with` block runs. `us` has the microseconds when the block has ended."""

    def __init__(self, server: BenchServer) -> None:
        self._server = server
        self._before = 0
        self.us = 0

    def __enter__(self) -> Self:
        self._before = self._spent_us()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.us = self._spent_us() - self._before

    def _spent_us(self) -> int:
        stats: Any = self._server.client.info("commandstats")
        return sum(int(stats[name]["usec"]) for name in ("cmdstat_fcall", "cmdstat_fcall_ro") if name in stats)
