"""`max_instances`, counted over all processes of a store.

A run that is not very short gets a split item beside its job, with the ref `run:<job id>`. From then on the job has the
ref `running`. So `apply_limits` asks the store only about claimed jobs with that ref, in one round trip for the whole
batch. Short runs cost nothing. A job that has reached its limit is still handed out, but with a `max_instances` that
every count reaches. Its executor then refuses the job in its usual way, with event and log line.

With at-most-once delivery a run has already left the store. `RunMarks` writes a *mark* in its place: an item with the
same ref `run:<job id>`. The step in which the run leaves the store also writes the mark. The mark is due when its lease
ends. The holder extends the lease while the run lasts, and deletes the mark at the end. A process that claims a mark
knows that the holder has died, and drops the mark.

Threads: any thread calls `RunMarks.end`; the rest needs the tracker's lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from wheel_sched.store import Item
from wheel_sched.store.core.call import Call, new_token
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.delay_store import values_of
from wheel_sched.store.core.get import Find
from wheel_sched.store.core.schedule import Schedule
from wheel_sched_apscheduler.occurrence import Occurrence
from wheel_sched_apscheduler.stores.connection import PendingCommand, commands_of
from wheel_sched_apscheduler.stores.layout import RUN, RUNNING

if TYPE_CHECKING:
    from wheel_sched.store import DelayStore


class LimitReached(int):
    """A `max_instances` that every count has reached. It prints as its number."""

    def __le__(self, _: object) -> bool:
        return True


def apply_limits(store: DelayStore, occurrences: Sequence[Occurrence]) -> None:
    """Have executors refuse the occurrences of jobs with `max_instances` runs in flight.

    Raises:
        StoreError: the store does not answer. Nothing was changed.
    """
    asked = [each for each in occurrences if RUNNING in each.handle.item.refs and not each.handle.split_item]
    if not asked:
        return
    runs = values_of(
        store.execute(
            [Call(each.handle.shard, Find(f"run:{each.job_id}", max(100, each.job.max_instances))) for each in asked]
        )
    )
    for occurrence, ids in zip(asked, runs, strict=True):
        occurrence.handle.running = bool(ids)
        most = occurrence.job.max_instances
        if len(ids) >= most:
            route = occurrence.job_id if store.shards > 1 else None
            # no process runs a quarantined one
            under_way = [found for found in store.get(ids, route=route) if found is not None and found.state != "held"]
            if len(under_way) >= most:
                occurrence.job.max_instances = LimitReached(most)


class _Mark(NamedTuple):
    shard: int
    item_id: str
    since_s: float


class RunMarks:
    """See the module.

    Args:
        shards: of the namespace.
        lease_ms: how long a mark counts without being extended.
    """

    def __init__(self, shards: int, lease_ms: int) -> None:
        self._shards = shards
        self._lease_ms = lease_ms
        self._running: dict[Occurrence, _Mark] = {}
        self._ended: deque[_Mark] = deque()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> bool:
        """Whether commands wait to be sent to the store immediately."""
        return bool(self._ended)

    def begin(self, occurrences: Sequence[Occurrence], server_now_ms: int) -> list[PendingCommand]:
        """Commands that write the marks of these runs."""
        items: dict[int, list[Item]] = {}
        for occurrence in occurrences:
            mark = _Mark(occurrence.handle.shard, f"\0{uuid4().hex}", time.monotonic())
            self._running[occurrence] = mark
            route = occurrence.job_id if self._shards > 1 else None
            item = Item(mark.item_id, server_now_ms + self._lease_ms, b"", RUN, (f"run:{occurrence.job_id}",), route)
            items.setdefault(mark.shard, []).append(item)
        return commands_of(items, lambda shard, batch: Call(shard, Schedule(batch, new_token())))

    def end(self, occurrence: Occurrence) -> None:
        """Note that a run has ended or did not begin. Any thread, idempotent."""
        mark = self._running.pop(occurrence, None)
        if mark is not None:
            self._ended.append(mark)

    def gather(self) -> list[PendingCommand]:
        """Commands that delete the marks of the runs that have ended since the last call."""
        ended: dict[int, list[Alteration]] = {}
        while self._ended:
            mark = self._ended.popleft()
            ended.setdefault(mark.shard, []).append(Alteration(mark.item_id, "c"))
        return commands_of(ended, lambda shard, batch: Call(shard, Change(batch, new_token())))

    def heartbeats(self, server_now_ms: int, alive: Callable[[Occurrence], bool]) -> list[PendingCommand]:
        """Commands that extend the marks of runs in this process. A run that its executor has lost is forgotten."""
        beats: dict[int, list[Alteration]] = {}
        lost_s = time.monotonic() - self._lease_ms / 1000
        for occurrence, mark in list(self._running.items()):
            if alive(occurrence):
                beats.setdefault(mark.shard, []).append(Alteration(mark.item_id, "r", server_now_ms + self._lease_ms))
            elif mark.since_s < lost_s:
                self._running.pop(occurrence, None)
        return commands_of(beats, lambda shard, batch: Call(shard, Change(batch, "")))
