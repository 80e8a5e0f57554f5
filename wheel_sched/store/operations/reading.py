"""Operations that only look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from wheel_sched.errors import StoreError
from wheel_sched.store.items import Counts, Found, State, Window
from wheel_sched.store.operations.call import Argument, head_of
from wheel_sched.store.record import Record, decode_text, encode_text, read_record


@dataclass(slots=True)
class Look:
    """Read the window: what is due in the next `ahead_ms`, heads, epoch and the last marker."""

    script: ClassVar[str] = "window"
    writes: ClassVar[bool] = False
    ahead_ms: int
    limit: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.ahead_ms, self.limit]

    def parse(self, reply: Any, shard: int) -> Window:
        now_us, epoch, due_head, fly_head, mark = reply[:5]
        dues = [(decode_text(reply[at]), reply[at + 1]) for at in range(5, len(reply), 2)]
        return Window(shard, now_us, epoch, head_of(due_head), head_of(fly_head), mark, dues)


@dataclass(slots=True)
class Get:
    """Read items wherever they are; None where there is none."""

    script: ClassVar[str] = "get"
    writes: ClassVar[bool] = False
    ids: Sequence[str]
    token: str = ""

    def argv(self) -> list[Argument]:
        return [*map(encode_text, self.ids)]

    def parse(self, reply: Any, shard: int) -> list[Found | None]:
        return [
            _found(item_id, *reply[at : at + 4]) for item_id, at in zip(self.ids, range(1, len(reply), 4), strict=True)
        ]


def _found(item_id: str, raw_state: bytes, score_ms: int, raw: bytes, raw_reason: bytes) -> Found | None:
    if not raw_state:
        return None
    state: Any = raw_state.decode()
    reason = raw_reason.decode("utf-8", "replace")
    try:
        record = read_record(raw)
    except StoreError:
        return Found(item_id, state, score_ms, 0, "", raw, reason or "unreadable record")
    return Found(item_id, state, score_ms, record.version, record.topic, record.body, reason, record.refs, record.route)


class IdPage(NamedTuple):
    """A page of (id, score): `last` is the last one looked at, None of none; `more` is False when that was all."""

    found: list[tuple[str, int]]
    last: tuple[str, int] | None
    more: bool


@dataclass(slots=True)
class ListIds:
    """One page of ids of a state in order of score, behind `last`; of one topic if asked.

    A page of one topic looks at a bounded number of items, so it may be short or empty and have more behind it.
    """

    script: ClassVar[str] = "list"
    writes: ClassVar[bool] = False
    state: State
    least_ms: int
    greatest_ms: int
    last: tuple[str, int] | None
    limit: int
    topic: str | None = None
    token: str = ""

    def argv(self) -> list[Argument]:
        last_id, last_score = self.last or ("", 0)
        place: list[Argument] = [self.state, self.least_ms, self.greatest_ms, encode_text(last_id), last_score]
        return [*place, self.limit, b"" if self.topic is None else b"=" + encode_text(self.topic)]

    def parse(self, reply: Any, shard: int) -> IdPage:
        _, more, last_id, last_score, *rest = reply
        found = [(decode_text(rest[at]), int(float(rest[at + 1]))) for at in range(0, len(rest), 2)]
        last = (decode_text(last_id), int(float(last_score))) if last_id else None
        return IdPage(found, last, more == b"1")


class Scanned(NamedTuple):
    """An item as a scan sees it: `record` is None when it was not asked for, is missing or cannot be read."""

    id: str
    score_ms: int
    record: Record | None
    reason: str


@dataclass(slots=True)
class Scan:
    """One page of a state with its records, in order of score, behind `last`: for readers of everything."""

    script: ClassVar[str] = "scan"
    writes: ClassVar[bool] = False
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
            length, _, rest = raw.partition(b":")
            end = int(length) if length.isdigit() else 0
            reason, raw = rest[:end], rest[end:]
        elif self.state == "held":
            reason = reason.partition(b"\n")[0]
        try:
            return read_record(raw), reason.decode("utf-8", "replace")
        except StoreError:
            return None, reason.decode("utf-8", "replace") or "unreadable record"


class BulkPage(NamedTuple):
    """A page as the server packed it, see bulk.lua; the last three are empty when records were not asked for."""

    more: bool
    ids: bytes
    id_lengths: bytes
    scores: bytes
    records: bytes
    record_lengths: bytes
    reasons: list[bytes | None]

    def end(self) -> tuple[str, int] | None:
        """Id and score of the last row, None of an empty page."""
        if not self.id_lengths:
            return None
        length = int(self.id_lengths.rpartition(b" ")[2])
        return decode_text(self.ids[len(self.ids) - length :]), int(float(self.scores.rpartition(b" ")[2]))


@dataclass(slots=True)
class Bulk(Scan):
    """A `Scan` that leaves the page packed, for readers of millions. For stores on a server."""

    script: ClassVar[str] = "bulk"

    def parse(self, reply: Any, shard: int) -> Any:
        _, more, *packed = reply
        return BulkPage(more == b"1", *packed)


@dataclass(slots=True)
class Cuts:
    """How many ids of a state lie between two scores, and the scores that cut them into parts of about `size`."""

    script: ClassVar[str] = "cuts"
    writes: ClassVar[bool] = False
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


@dataclass(slots=True)
class Inspect:
    """One step of a search for records without a place: (next cursor, "0" = that was all; their ids)."""

    script: ClassVar[str] = "inspect"
    writes: ClassVar[bool] = False
    hash: str  # "body" or "deadbody"
    cursor: str = "0"
    count: int = 500
    token: str = ""

    def argv(self) -> list[Argument]:
        return [self.hash, self.cursor, self.count]

    def parse(self, reply: Any, shard: int) -> tuple[str, list[str]]:
        return decode_text(reply[0]), [decode_text(raw) for raw in reply[1]]


@dataclass(slots=True)
class Count:
    """Read the counters beside the true sizes."""

    script: ClassVar[str] = "counts"
    writes: ClassVar[bool] = False
    token: str = ""

    def argv(self) -> list[Argument]:
        return []

    def parse(self, reply: Any, shard: int) -> Counts:
        names = ("due", "fly", "held", "dead", "body", "deadbody", "claim", "why")
        sizes: dict[str, int] = {name: reply[1 + at] for at, name in enumerate(names)}
        meta = {decode_text(reply[at]): decode_text(reply[at + 1]) for at in range(11, len(reply), 2)}
        return counts_of(reply[0], sizes, meta, head_of(reply[9]), head_of(reply[10]))


def counts_of(
    now_us: int, sizes: dict[str, int], meta: dict[str, str], due_head_ms: int | None, fly_head_ms: int | None
) -> Counts:
    """Counters from a shard's meta hash."""
    now: dict[tuple[str, str], int] = {}
    ever: dict[tuple[str, str], int] = {}
    paused: dict[str, int] = {}
    for name, value in meta.items():
        kind, _, rest = name.partition(":")
        if kind == "p":
            paused[rest] = int(value)
        elif kind in ("n", "t"):
            what, _, topic = rest.partition(":")
            (now if kind == "n" else ever)[what, topic] = int(value)
    return Counts(
        now_us,
        now,
        ever,
        sizes,
        due_head_ms,
        fly_head_ms,
        epoch=int(meta.get("epoch", 1)),
        jumps=int(meta.get("jumps", 0)),
        last_jump_ms=int(meta.get("last_jump", 0)),
        paused=paused,
        unreadable=int(meta.get("unreadable", 0)),
        frozen=meta.get("frozen"),
    )


@dataclass(slots=True)
class Known:
    """Whether (id, topic) pairs are known: given ones that were stored, or that wait or are in flight."""

    script: ClassVar[str] = "known"
    writes: ClassVar[bool] = False
    pairs: Sequence[tuple[str, str]]
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(part) for pair in self.pairs for part in pair]

    def parse(self, reply: Any, shard: int) -> list[bool]:
        return [answer == 1 for answer in reply]


@dataclass(slots=True)
class Find:
    """Ids that carry a ref, in no order."""

    script: ClassVar[str] = "find"
    writes: ClassVar[bool] = False
    ref: str
    limit: int
    token: str = ""

    def argv(self) -> list[Argument]:
        return [encode_text(self.ref), self.limit]

    def parse(self, reply: Any, shard: int) -> list[str]:
        return [decode_text(raw) for raw in reply][: self.limit]
