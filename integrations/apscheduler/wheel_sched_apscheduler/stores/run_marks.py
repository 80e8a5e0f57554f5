"""Marks of runs that are handed out at most once: such a run has left the store, and `max_instances` must count it.

A mark is an item with the ref that an occurrence beside its job has (`run:<job id>`), so whoever counts finds both, see
`room`. It is written in the step in which the run leaves the store, and due when its lease ends: the holder extends it
while the run lasts, and cancels it at the end. Who claims one has found that its holder is lost, and drops it.

Threads: `end` from any, the rest under the owner's lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from wheel_sched.store import MAX_BATCH, Item
from wheel_sched.store.operations import Alteration, Call, Change, Schedule, new_token
from wheel_sched_apscheduler.occurrence import Fire
from wheel_sched_apscheduler.stores.claims import Parcel
from wheel_sched_apscheduler.stores.layout import RUN


class _Mark(NamedTuple):
    shard: int
    item_id: str
    since_s: float


class Marks:
    """See the module.

    Args:
        shards: of the namespace.
        lease_ms: how long a mark counts without being extended.
    """

    def __init__(self, shards: int, lease_ms: int) -> None:
        self._shards = shards
        self._lease_ms = lease_ms
        self._running: dict[Fire, _Mark] = {}
        self._ended: deque[_Mark] = deque()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> bool:
        """Whether there is something to tell the store at once."""
        return bool(self._ended)

    def begin(self, fires: Sequence[Fire], server_now_ms: int) -> list[Parcel]:
        """Calls that mark these as running."""
        items: dict[int, list[Item]] = {}
        for fire in fires:
            mark = _Mark(fire.ticket.shard, f"\0{uuid4().hex}", time.monotonic())
            self._running[fire] = mark
            route = fire.job_id if self._shards > 1 else None
            item = Item(mark.item_id, server_now_ms + self._lease_ms, b"", RUN, (f"run:{fire.job_id}",), route)
            items.setdefault(mark.shard, []).append(item)
        return [
            _parcel(shard, Schedule(each[at : at + MAX_BATCH], new_token()))
            for shard, each in items.items()
            for at in range(0, len(each), MAX_BATCH)
        ]

    def end(self, fire: Fire) -> None:
        """A run has ended, or did not begin; any thread. Idempotent."""
        mark = self._running.pop(fire, None)
        if mark is not None:
            self._ended.append(mark)

    def gather(self) -> list[Parcel]:
        """Calls that take away the marks of what has ended since the last time."""
        ended: dict[int, list[Alteration]] = {}
        while self._ended:
            mark = self._ended.popleft()
            ended.setdefault(mark.shard, []).append(Alteration(mark.item_id, "c"))
        return _changes(ended, new_token)

    def heartbeats(self, server_now_ms: int, alive: Callable[[Fire], bool]) -> list[Parcel]:
        """Calls that extend the marks of what is still running here; what its executor has lost is forgotten."""
        beats: dict[int, list[Alteration]] = {}
        lost_s = time.monotonic() - self._lease_ms / 1000
        for fire, mark in list(self._running.items()):
            if alive(fire):
                beats.setdefault(mark.shard, []).append(Alteration(mark.item_id, "r", server_now_ms + self._lease_ms))
            elif mark.since_s < lost_s:
                self._running.pop(fire, None)
        return _changes(beats, str)


def _changes(alterations: dict[int, list[Alteration]], token: Callable[[], str]) -> list[Parcel]:
    return [
        _parcel(shard, Change(each[at : at + MAX_BATCH], token()))
        for shard, each in alterations.items()
        for at in range(0, len(each), MAX_BATCH)
    ]


def _parcel(shard: int, operation: Any) -> Parcel:
    call: Call[Any] = Call(shard, operation)
    return Parcel(call, [], lambda _, __: None)
