"""Run history: tells other processes how occurrences ended, and which long runs are in flight in this process.

One item of the store holds some fifty ends, so history costs a burst almost nothing. A record is made from the
occurrence when it has ended, so the order of a scheduler's events does not matter. A run is announced after half a
second; shorter runs are not announced.

Threads: any thread calls `note`; the rest needs the tracker's lock.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any
from uuid import uuid4

from wheel_sched.store import MAX_BATCH, Found, Item
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.restore import Restore
from wheel_sched.store.core.sweep import Sweep
from wheel_sched_apscheduler.entries import RunRecord, owner_name, record_of
from wheel_sched_apscheduler.occurrence import Occurrence
from wheel_sched_apscheduler.stores.connection import PendingCommand, ignore_answer
from wheel_sched_apscheduler.stores.layout import HISTORY, WORKER, WORKERS

ENDS_PER_ITEM = 50
WRITE_AT_ENDS = 500
ITEMS_AT_A_TIME = 20  # some milliseconds of work, in which an event loop may have to wait for the interpreter
WRITE_EVERY_S = 1.0
ANNOUNCE_AFTER_S = 0.5
ANNOUNCE_EVERY_S = 1.0
ANNOUNCED_AT_MOST = 500


_row_of = attrgetter(*(each.name for each in fields(RunRecord)))


def dump_records(records: Sequence[RunRecord]) -> bytes:
    """Records as one body."""
    return json.dumps([_row_of(record) for record in records], separators=(",", ":")).encode()


def load_records(body: bytes) -> list[RunRecord]:
    """Records of one body; [] when it cannot be read."""
    try:
        return [RunRecord(*row) for row in json.loads(body)]
    except (ValueError, TypeError):
        return []


class RunHistory:
    """See the module.

    Args:
        keep: items of run records that are kept; 0 = history is off.
        lease_ms: of the store. An announcement older than three leases is of a dead process.
        clock: seconds that never go back. Defaults to `time.monotonic`.
    """

    def __init__(self, keep: int, lease_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._keep = keep
        self._lease_ms = lease_ms
        self._owner = owner_name()
        self._ends: deque[RunRecord] = deque(maxlen=50_000)  # bound for outages; the oldest are dropped first
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
        """Commands that write the ends, once a second or when there are many."""
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
        return [PendingCommand(call, [], ignore_answer)] if found else []

    def trims(self, shards: int) -> list[PendingCommand]:
        """Commands that keep history bounded."""
        if not self._keep:
            return []
        return [PendingCommand(Call(shard, Sweep(dead_cap=self._keep)), [], ignore_answer) for shard in range(shards)]

    def announcement(self, in_flight: Iterable[Occurrence], now_ms: int) -> Item | None:
        """The item that announces this process's runs; None when nothing has changed."""
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
