"""The contents of a simulated store server: in memory, or in a database that runs the real scripts.

`StoreServer` and the checkers of invariants read both in the same way. The server's clock is virtual, so each call
carries the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from wheel_sched.store.core.call import Call
from wheel_sched.store.core.get import reason_of
from wheel_sched.store.core.items import Marker, State
from wheel_sched.store.log_intake import LogIntakeInMemory
from wheel_sched.store.memory import MemoryBackend

MEMORY = "memory"
FAKEREDIS = "fakeredis"


REASONED = ("held", "dead")  # the states whose items have a reason


class KeptItem(NamedTuple):
    """An item in the store.

    `claim`: the number of the claim that holds the item; 0 = none. `reason`: why the item is held or dead.
    """

    shard: int
    id: str
    state: State
    claim: int
    topic: str
    body: bytes
    reason: str


class StoreContents(Protocol):
    """What a simulated store server has stored. `execute` performs calls on it."""

    def execute(self, calls: Sequence[Call[Any]], wall_us: int) -> list[Any]:
        """Perform calls at the server's time `wall_us`. Returns a value or an exception for each call, in order."""
        ...

    def marker(self, shard: int) -> Marker:
        """The newest marker of a shard. Its id is the number of markers since the store was empty."""
        ...

    def items(self) -> list[KeptItem]:
        """All items, in order of shard and then of id."""
        ...

    def waiting(self) -> bool:
        """Whether an item is due, leased or held."""
        ...

    def positions(self) -> dict[str, int]:
        """The stored position of each log source: how far the intake has taken in its records."""
        ...

    def empty(self) -> None:
        """Remove everything except the functions and scripts."""
        ...

    def flush_scripts(self) -> None:
        """Forget all functions and scripts, as after SCRIPT FLUSH and FUNCTION FLUSH."""
        ...


class MemoryContents:
    """The contents of a store in memory, which has no scripts."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._wall_us = 0
        self.backend: MemoryBackend
        self.empty()

    def execute(self, calls: Sequence[Call[Any]], wall_us: int) -> list[Any]:
        """Implements `StoreContents.execute`."""
        self._wall_us = wall_us
        return self.backend.execute(calls)

    def marker(self, shard: int) -> Marker:
        """Implements `StoreContents.marker`."""
        return self.backend.shards[shard].mark

    def items(self) -> list[KeptItem]:
        """Implements `StoreContents.items`."""
        return [
            KeptItem(
                shard.number,
                item.id,
                item.state,
                item.claim if item.state == "leased" else 0,
                item.topic,
                item.body,
                reason_of(item) if item.state in REASONED else "",
            )
            for shard in self.backend.shards
            for _, item in sorted(shard.items.items())
        ]

    def waiting(self) -> bool:
        """Implements `StoreContents.waiting`."""
        return any(shard.due or shard.ready or shard.leased or shard.held for shard in self.backend.shards)

    def positions(self) -> dict[str, int]:
        """Implements `StoreContents.positions`."""
        found: dict[str, int] = {}
        for shard in self.backend.shards:
            for source, position in shard.room(LogIntakeInMemory).positions.items():
                found[source] = max(position, found.get(source, 0))
        return found

    def empty(self) -> None:
        """Implements `StoreContents.empty`."""
        self.backend = MemoryBackend(self._shards, wall_us=lambda: self._wall_us)

    def flush_scripts(self) -> None:
        """Do nothing: there are no scripts."""
