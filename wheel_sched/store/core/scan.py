"""Read all items of a state with their records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from wheel_sched.errors import ConfigError, StoreError
from wheel_sched.store.core.call import Argument, Operation
from wheel_sched.store.core.get import reason_and_record, reason_of
from wheel_sched.store.core.items import Record, State, decode_text, encode_text, read_record
from wheel_sched.store.core.listing import page_of
from wheel_sched.store.core.shard import MemoryShard


class Scanned(NamedTuple):
    """An item of a scan. `record` is None when the caller did not ask for it, or when it is missing or unreadable."""

    id: str
    score_ms: int
    record: Record | None
    reason: str


@dataclass(slots=True)
class Scan(Operation[Any]):
    """Read a page of the items in a state that sort behind `last`, with their records, in order of score."""

    script = "scan"
    reads = True
    writes = False
    state: State
    least_ms: int
    greatest_ms: int
    last: tuple[str, int] | None
    limit: int
    records: bool = True
    token: str = ""

    def argv(self) -> list[Argument]:
        last_id, last_score = self.last or ("", 0)
        place: list[Argument] = [self.state, self.least_ms, self.greatest_ms, encode_text(last_id), last_score]
        return [*place, self.limit, int(self.records)]

    def parse(self, reply: Any, shard: int) -> list[Scanned]:
        _, ids, scores, records, reasons = reply
        if not self.records:
            return [Scanned(decode_text(i), int(float(score)), None, "") for i, score in zip(ids, scores, strict=True)]
        reasons = reasons or [b""] * len(ids)
        return [
            Scanned(decode_text(raw_id), int(float(score)), *self._record(record, reason))
            for raw_id, score, record, reason in zip(ids, scores, records, reasons, strict=True)
        ]

    def _record(self, raw: bytes | None, raw_reason: bytes | None) -> tuple[Record | None, str]:
        if raw is None:
            return None, "no record"
        reason = raw_reason or b""
        if self.state == "dead":
            reason, raw = reason_and_record(raw)
        elif self.state == "held":
            reason = reason.partition(b"\n")[0]
        try:
            return read_record(raw), reason.decode("utf-8", "replace")
        except StoreError:
            return None, reason.decode("utf-8", "replace") or "unreadable record"

    def in_memory(self, shard: MemoryShard) -> list[Scanned]:
        page = page_of(shard, self, self.limit)
        if not self.records:
            return [Scanned(item_id, score_ms, None, "") for item_id, score_ms in page]
        scanned = []
        for item_id, score_ms in page:
            item = shard.items[encode_text(item_id)]
            record = Record(item.version, item.topic, item.route, item.refs, item.body)
            scanned.append(Scanned(item_id, score_ms, record, reason_of(item)))
        return scanned


class BulkPage(NamedTuple):
    """A page as the server packed it, see bulk.lua. The last three fields are empty if the call asks for no records."""

    more: bool
    ids: bytes
    id_lengths: bytes
    scores: bytes
    records: bytes
    record_lengths: bytes
    reasons: list[bytes | None]

    def end(self) -> tuple[str, int] | None:
        """Id and score of the last row, None for an empty page."""
        if not self.id_lengths:
            return None
        length = int(self.id_lengths.rpartition(b" ")[2])
        return decode_text(self.ids[len(self.ids) - length :]), int(float(self.scores.rpartition(b" ")[2]))


@dataclass(slots=True)
class Bulk(Scan):
    """A `Scan` that does not unpack the page, for readers of millions of items. Only for stores on a server."""

    script = "bulk"

    def parse(self, reply: Any, shard: int) -> Any:
        _, more, *packed = reply
        return BulkPage(more == b"1", *packed)

    def in_memory(self, shard: MemoryShard) -> list[Scanned]:
        """Raises `ConfigError`: a store in memory has no packed pages."""
        raise ConfigError("expected a store on a server for a bulk scan, got one in memory: nothing was read")


@dataclass(slots=True)
class Cuts(Operation[tuple[int, list[int]]]):
    """Count the ids of a state between two scores. Cut them into parts of about `size` ids, or into `most` larger ones.

    The answer is (count, the first score of each part but the first).
    """

    script = "cuts"
    reads = True
    writes = False
    state: State
    least_ms: int
    greatest_ms: int
    size: int
    most: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.state, self.least_ms, self.greatest_ms, self.size, self.most]

    def parse(self, reply: Any, shard: int) -> tuple[int, list[int]]:
        return reply[1], [int(float(score)) for score in reply[2:]]
