"""The time that servers spend in scripts, by their own count."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self


class ScriptTime:
    """Counts the time in scripts while its `with` block runs.

    When the block has ended, `each_us` has the microseconds of each server, and `us` their sum.

    Args:
        clients: a redis-py client of each server.
    """

    def __init__(self, *clients: Any) -> None:
        self._clients = clients
        self._before: list[int] = []
        self.each_us: list[int] = []

    @property
    def us(self) -> int:
        return sum(self.each_us)

    def __enter__(self) -> Self:
        self._before = [_spent_us(client) for client in self._clients]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.each_us = [_spent_us(client) - before for client, before in zip(self._clients, self._before, strict=True)]


def _spent_us(client: Any) -> int:
    stats: Any = client.info("commandstats")
    return sum(int(stats[name]["usec"]) for name in ("cmdstat_fcall", "cmdstat_fcall_ro") if name in stats)
