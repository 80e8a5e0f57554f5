"""What the store tells other processes about runs: how many are under way, which ones run long, and how runs ended.

*`max_instances`, counted over all processes.* A run that is not very short gets a split item beside its job if the job
runs again, with the ref `run:<job id>`. From then on the job has the ref `running`. So `apply_limits` asks the store
only about claimed jobs with the ref `running` and claimed split items, in one round trip for the whole batch, and one
for each that seems to have reached its limit. Short runs cost nothing. A job that has reached its limit is still handed
out, but with a `LimitReached` as its `max_instances`. The executor then refuses the job in its usual way, with an event
and a log line.

With at-most-once delivery a run has already left the store. `RunMarks` writes a *mark* in its place: an item with the
same ref. The round trip in which the run leaves the store also writes the mark. The mark is due when its lease ends.
The process extends this lease while the run lasts, and deletes the mark at the end. A process that claims a mark knows
that the process of the run has died, and drops the mark.

*History.* One item of the store holds up to fifty records of ended runs, so history adds almost no cost to a burst. The
record is made from the occurrence when it has ended, so the order of a scheduler's events does not matter.

*Announcements.* A process lists its runs of more than half a second, at most 500 of them, in an item, which other
processes read and show.

Threads: any thread calls `RunMarks.end` and `RunHistory.note`. Callers of the other methods hold the lock of the
`ClaimTracker`.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import uuid4

from wheel_sched.store import MAX_BATCH, DelayStore, Found, Item
from wheel_sched.store.core.call import Call, new_token
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.delay_store import values_of
from wheel_sched.store.core.get import Find
from wheel_sched.store.core.restore import Restore
from wheel_sched.store.core.schedule import Schedule
from wheel_sched.store.core.sweep import Sweep
from wheel_sched_apscheduler.entries import RunRecord, owner_name, record_of
from wheel_sched_apscheduler.occurrence import Occurrence
from wheel_sched_apscheduler.stores.layout import (
    HISTORY,
    RUN,
    RUNNING,
    WAITING,
    WORKER,
    WORKERS,
    PendingCommand,
    commands_of,
    run_ref,
)

ENDS_PER_ITEM = 50
WRITE_AT_ENDS = 500
ITEMS_AT_A_TIME = 20  # to write this many takes some milliseconds, in which an event loop may wait for the interpreter
WRITE_EVERY_S = 1.0
ANNOUNCE_AFTER_S = 0.5
ANNOUNCE_EVERY_S = 1.0
ANNOUNCED_AT_MOST = 500
_ROW_TYPES = [str, str, int, int, int, int, str, str, int, str]
_row_of = attrgetter(*(each.name for each in fields(RunRecord)))


class LimitReached(int):
    """The `max_instances` of a job that has reached its limit over all processes.

    An executor compares it with the number of instances in its own process. The comparison always finds the limit
    reached. Log lines show the limit as an ordinary number.
    """

    def __le__(self, _: object) -> bool:
        return True


def apply_limits(store: DelayStore, occurrences: Sequence[Occurrence]) -> None:
    """Make executors refuse the occurrences whose jobs have `max_instances` runs under way, over all processes.

    Raises:
        StoreError: the store does not answer. Nothing was changed.
    """
    asked = [each for each in occurrences if RUNNING in each.handle.item.refs or each.handle.split_item]
    if not asked:
        return
    runs = values_of(
        store.execute(
            [Call(each.handle.shard, Find(run_ref(each.job_id), max(100, each.job.max_instances))) for each in asked]
        )
    )
    # a split item does not count itself, and not the split items that come after it: two would wait for each other
    undecided = {each.handle.item_id for each in asked if each.handle.split_item}
    for occurrence, run_ids in zip(asked, runs, strict=True):
        ids = run_ids.ids
        if occurrence.handle.split_item:
            ids = [item_id for item_id in ids if item_id not in undecided]
            undecided.discard(occurrence.handle.item_id)
        occurrence.handle.running = bool(ids)
        most = occurrence.job.max_instances
        if len(ids) >= most:
            route = occurrence.job_id if store.shards > 1 else None
            found = store.get(ids, route=route)
            if sum(each is not None and _is_under_way(each) for each in found) >= most:
                occurrence.job.max_instances = LimitReached(most)


def _is_under_way(run: Found) -> bool:
    """Whether a process may have begun this run. False if the run is quarantined, or was put back and waits."""
    return run.state != "held" and not (run.state == "due" and WAITING in run.refs)


class _Mark(NamedTuple):
    shard: int
    item_id: str
    since_s: float


class RunMarks:
    """The marks: items by which processes count runs that have left the store (at-most-once delivery).

    Args:
        shards: number of shards of the namespace.
        lease_ms: the time after which a mark is due if it is not extended.
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
            item = Item(mark.item_id, server_now_ms + self._lease_ms, b"", RUN, (run_ref(occurrence.job_id),), route)
            items.setdefault(mark.shard, []).append(item)
        return commands_of(items, lambda shard, batch: Call(shard, Schedule(batch, new_token())))

    def end(self, occurrence: Occurrence) -> None:
        """Note that a run has ended or did not begin. Any thread may call it. Idempotent."""
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
        """Commands that extend the leases of the marks of live runs. Forgets a run that its executor has lost."""
        beats: dict[int, list[Alteration]] = {}
        lost_s = time.monotonic() - self._lease_ms / 1000
        for occurrence, mark in list(self._running.items()):
            if alive(occurrence):
                beats.setdefault(mark.shard, []).append(Alteration(mark.item_id, "r", server_now_ms + self._lease_ms))
            elif mark.since_s < lost_s:
                self._running.pop(occurrence, None)
        return commands_of(beats, lambda shard, batch: Call(shard, Change(batch, "")))


def dump_records(records: Sequence[RunRecord]) -> bytes:
    """Write records as the body of one item."""
    return json.dumps([_row_of(record) for record in records], separators=(",", ":")).encode()


def load_records(body: bytes) -> list[RunRecord]:
    """Read the records in the body of an item; [] when the body cannot be read."""
    try:
        return [RunRecord(*row) for row in json.loads(body) if [type(part) for part in row] == _ROW_TYPES]
    except (ValueError, TypeError):
        return []


class RunHistory:
    """Writes to the store how runs ended, and an announcement: the item that lists the long runs of this process.

    Args:
        keep: how many items of run records are kept; 0 = history is off.
        lease_ms: the lease of the jobstore, in ms. If an announcement is older than three leases, its process is dead.
        clock: seconds that never go back. Defaults to `time.monotonic`.
    """

    def __init__(self, keep: int, lease_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._keep = keep
        self._lease_ms = lease_ms
        self._owner = owner_name()
        self._ends: deque[RunRecord] = deque(maxlen=50_000)  # in a long outage, the oldest records are dropped
        self.worker_id = f"\0{uuid4().hex}"
        self.announced = False
        self._last: list[Any] = []
        self._announce_at = 0.0
        self._beat_at = 0.0
        self._write_at = 0.0
        self.closing = False

    def next_s(self, in_flight: bool, now_s: float) -> float | None:
        """The seconds until the next write; None = nothing to write."""
        naps = []
        if self._ends:
            naps.append(0.0 if self.closing or len(self._ends) >= WRITE_AT_ENDS else self._write_at - now_s)
        if in_flight or self._last:
            naps.append(max(0.01, self._announce_at - now_s))
        return max(0.0, min(naps)) if naps else None

    def note(self, occurrence: Occurrence) -> None:
        """Note that an occurrence has ended."""
        if self._keep:
            self._ends.append(record_of(occurrence, self._owner))

    def gather(self, now_ms: int) -> list[PendingCommand]:
        """Commands that write the records of ended runs, once a second or when there are many."""
        now_s = self.clock()
        if not self.closing and len(self._ends) < WRITE_AT_ENDS and now_s < self._write_at:
            return []
        self._write_at = now_s + WRITE_EVERY_S
        found: list[Found] = []
        while self._ends and len(found) < (MAX_BATCH if self.closing else ITEMS_AT_A_TIME):
            ends = [self._ends.popleft() for _ in range(min(len(self._ends), ENDS_PER_ITEM))]
            item_id = f"\0{uuid4().hex}"
            found.append(Found(item_id, "dead", now_ms, 0, HISTORY, dump_records(ends)))
        call: Call[Any] = Call(0, Restore(found))
        return [PendingCommand(call)] if found else []

    def trims(self, shards: int) -> list[PendingCommand]:
        """Commands that drop the oldest items of run records."""
        if not self._keep:
            return []
        return [PendingCommand(Call(shard, Sweep(dead_cap=self._keep))) for shard in range(shards)]

    def announcement(self, in_flight: Iterable[Occurrence], now_ms: int) -> Item | None:
        """The item that lists this process's long runs; None when there is nothing new to write."""
        now_s = self.clock()
        if now_s < self._announce_at:
            return None
        self._announce_at = now_s + ANNOUNCE_EVERY_S
        old_ms = time.time_ns() // 1_000_000 - int(ANNOUNCE_AFTER_S * 1000)
        occurrences = [
            [occurrence.id, occurrence.job_id, occurrence.claimed_ms, occurrence.token]
            for occurrence in list(in_flight)
            if occurrence.claimed_ms <= old_ms
        ][:ANNOUNCED_AT_MOST]
        if occurrences == self._last and (not occurrences or now_s < self._beat_at):
            return None
        self._last, self._beat_at = occurrences, now_s + self._lease_ms / 1000
        self.announced = True
        record = {
            "owner": self._owner,
            "seen_ms": now_ms,
            "lease_ms": max(self._lease_ms, 1000),
            "occurrences": occurrences,
        }
        return Item(self.worker_id, None, json.dumps(record).encode(), WORKER, (WORKERS,))
