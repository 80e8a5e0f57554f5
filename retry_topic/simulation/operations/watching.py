"""The store of the world of operations: it sees each change of a letter and of an operation's record.

The checker relies on what this store has seen. The store reads the calls and compares the letters before and after
them. It uses no count of the product. If a single change breaks an invariant, the store notes that at once in `found`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retry_topic.message.encoding import decode_body
from retry_topic.message.headers import read
from wheel_sched.management.operations.operation import DurableOperation, OperationBatch, read_operation
from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.store import StoreServer
from wheel_sched.simulation.world import World
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.restore import Restore
from wheel_sched.store.documents.operations import PutDocument

_TOKEN = re.compile(r"operation-([0-9a-f]+)-(\d+)-[\d-]+")


def replays_of(body: bytes) -> int:
    """How often a letter was replayed, as the headers of its record say."""
    return read(decode_body(body).headers).replays


@dataclass(frozen=True, slots=True)
class Death:
    """A letter's death: when it was stored (true time, ns), and the time of death that the store keeps (ms)."""

    at_ns: int
    died_ms: int
    replays: int


@dataclass(frozen=True, slots=True)
class LetterChange:
    """A letter was replayed or deleted. `operation` and `batch`: who did it; "" and 0: a visitor."""

    at_ns: int
    id: str
    verb: str
    operation: str
    batch: int


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch, and how often each of its letters had died when the batch was written into the operation's record."""

    batch: OperationBatch
    deaths: dict[str, int]


class WatchedStore(StoreServer):
    """A store server that notes what happens to letters and operations.

    Args:
        world: the world that the server belongs to.
        shards: number of shards.
    """

    def __init__(self, world: World, shards: int) -> None:
        super().__init__(world, shards)
        self.found: list[str] = []  # violations
        self.records: dict[str, list[tuple[int, DurableOperation]]] = {}  # by id: true time in ns, and the record
        self.batches: dict[tuple[str, int], WrittenBatch] = {}
        self.performed: dict[tuple[str, int], list[int]] = {}  # the store's time (ms) of each change for a batch
        self.deaths: dict[str, list[Death]] = {}
        self.changes: list[LetterChange] = []

    def perform(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Overrides `StoreServer.perform`: notes what the calls have changed."""
        kinds = {type(call.operation) for call in calls}
        if not kinds & {Change, Restore, PutDocument}:
            return super().perform(calls)
        letters = bool(kinds & {Change, Restore})
        before = self._states() if letters else {}
        answers = super().perform(calls)
        after = self._states() if letters else {}
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, Exception):
                continue
            match call.operation:
                case Change(alterations=alterations, token=token):
                    self._note_changes(alterations, token, before, after)
                case Restore(found=found):
                    for one in found:
                        if one.id not in before:
                            death = Death(self.world.scheduler.now_ns, one.score_ms, replays_of(one.body))
                            self.deaths.setdefault(one.id, []).append(death)
                case PutDocument(collection="operations", value=value) if answer is not None:
                    self._note_record(read_operation(value, answer))
        return answers

    def _states(self) -> dict[str, str]:
        return {item.id: item.state for item in self.contents.items()}

    def _note_changes(
        self, alterations: Sequence[Alteration], token: str, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        named = _TOKEN.fullmatch(token)
        operation, batch = (named[1], int(named[2])) if named else ("", 0)
        if named:
            self.performed.setdefault((operation, batch), []).append(self.wall_ms())
        for one in alterations:
            if one.verb in ("q", "x") and before.get(one.id) == "dead" and after.get(one.id) != "dead":
                change = LetterChange(self.world.scheduler.now_ns, one.id, one.verb, operation, batch)
                if operation:
                    self._check(change)
                self.changes.append(change)

    def _check(self, change: LetterChange) -> None:
        """Note each change of a letter that an operation must not make."""
        where = f"letter {change.id}, changed at {change.at_ns // MS} ms by {change.operation}, batch {change.batch}"
        records = self.records.get(change.operation)
        written = self.batches.get((change.operation, change.batch))
        if not records or not records[-1][1].started_ms:
            self.found.append(f"unconfirmed: {where}, before anybody had confirmed the operation")
            return
        if written is None or change.id not in written.deaths:
            self.found.append(f"unwritten: {where}, whose record does not name the letter")
            return
        deaths, made_ms = self.deaths[change.id], records[0][1].created_ms
        if len(deaths) != written.deaths[change.id]:
            self.found.append(f"version: {where}, although the letter has died again since")
        if deaths[-1].died_ms > made_ms:
            self.found.append(f"later: {where}, died at {deaths[-1].died_ms}, after the operation's time {made_ms}")
        if not self.steps_back_ms and any(
            (one.id, one.operation) == (change.id, change.operation) for one in self.changes
        ):
            self.found.append(f"again: {where}, for the second time")

    def _note_record(self, record: DurableOperation) -> None:
        records = self.records.setdefault(record.id, [])
        if any(record.version == known.version for _, known in records):
            return  # a repeated call: the store has answered it without a change
        before = records[-1][1] if records else None
        if before is not None and record.batches > before.batches and before.state != "running":
            self.found.append(f"stopped: operation {record.id} is {before.state} and begins batch {record.batches}")
        if before is not None and before.state not in ("running", record.state) and record.state == "running":
            settled = before.batch is not None and record.batch is None  # a runner has settled the batch
            if before.state not in ("ready", "paused") or settled:
                self.found.append(f"stopped: operation {record.id} was {before.state}, and runs again")
        if before is not None and not before.is_open:
            self.found.append(f"ended: operation {record.id} was {before.state}, and is {record.state}")
        if record.batch is not None and (record.id, record.batch.number) not in self.batches:
            deaths = {entry[0]: len(self.deaths.get(entry[0], ())) for entry in record.batch.entries}
            self.batches[record.id, record.batch.number] = WrittenBatch(record.batch, deaths)
        records.append((self.world.scheduler.now_ns, record))
