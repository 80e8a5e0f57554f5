"""Pages of a scan as Arrow columns, in bulk: Python touches each row as seldom as it can.

A page comes as lists of bytes. Ids and scores are read by Arrow as a whole. Records of one topic start alike, so all of
them are cut at the same place once it was seen that they do; the rest, and rows that are odd, are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from wheel_sched.errors import StoreError
from wheel_sched.store.items import State
from wheel_sched.store.operations import Scan
from wheel_sched.store.record import Record, encode_text, read_record

Arrays = dict[str, Any]  # name -> Arrow array, of the same length each


class Raw(NamedTuple):
    """A page as the server gave it; the last two are empty when records were not asked for."""

    ids: list[bytes]
    scores: list[bytes]
    records: list[bytes | None]
    reasons: list[bytes | None]


@dataclass(slots=True)
class RawScan(Scan):
    """A `Scan` whose reply is left as it is. For stores on a server."""

    def parse(self, reply: Any, shard: int) -> Any:
        return Raw(*reply[1:])


def places(shard: int, state: State, pages: Sequence[Raw], names: set[str]) -> Arrays:
    """id, state, shard and at_ms, as far as they are wanted."""
    count = sum(len(page.ids) for page in pages)
    found: Arrays = {}
    if "id" in names:
        found["id"] = texts([raw for page in pages for raw in page.ids])
    if "state" in names:
        found["state"] = pa.repeat(pa.scalar(state, pa.string()), count)
    if "shard" in names:
        found["shard"] = pa.repeat(pa.scalar(shard, pa.int32()), count)
    if "at_ms" in names:
        scores = pa.array([raw for page in pages for raw in page.scores], pa.binary())
        # by way of floats: a server may write a score as 4e+12
        found["at_ms"] = scores.cast(pa.string()).cast(pa.float64()).cast(pa.int64())
    return found


def items(shard: int, state: State, pages: Sequence[Raw], names: set[str]) -> Arrays:
    """The form `items`."""
    found = places(shard, state, pages, names)
    wanted = names - found.keys()
    if not wanted:
        return found
    stored = [raw for page in pages for raw in page.records]
    records = stored
    if state == "dead":
        records = [None if raw is None else _without_reason(raw) for raw in stored]
    parts = _alike(records, wanted)
    rows = [read_or_none(raw) for raw in records] if parts is None else []
    found.update(_one_by_one(rows) if parts is None else parts)
    if "reason" in wanted and state == "due" and parts is not None:
        found["reason"] = pa.nulls(len(records), pa.string())
    elif "reason" in wanted:
        told = [raw for page in pages for raw in page.reasons] or [None] * len(stored)
        sound = [row is not None for row in rows] if parts is None else [True] * len(stored)
        reasons = [_reason(state, *row) for row in zip(told, stored, sound, strict=True)]
        found["reason"] = pa.array(reasons, pa.string())
    return {name: found[name] for name in names}


def _alike(records: list[bytes | None], wanted: set[str]) -> Arrays | None:
    """The parts of records that all have the same topic and neither route nor refs; None when they are not so."""
    try:
        first = read_record(records[0] or b"")
        if first.route is not None or first.refs:
            return None
        topic = encode_text(first.topic)
        head = b"%d:0:0:%s" % (len(topic), topic)
        cut = [raw.split(b":", 2) for raw in records]  # type: ignore[union-attr]  # None has no split
        if not all(mark == b"1" and rest.startswith(head) for mark, _, rest in cut):
            return None
        found: Arrays = {}
        if "version" in wanted:
            versions = pa.array([version for _, version, _ in cut], pa.binary())
            found["version"] = versions.cast(pa.string()).cast(pa.int64())
        if "body" in wanted:
            start = len(head)
            found["body"] = pa.array([rest[start:] for _, _, rest in cut], pa.binary())
        count = len(records)
        found["topic"] = pa.repeat(pa.scalar(text_of(topic), pa.string()), count)
        found["route"] = pa.nulls(count, pa.string())
        found["refs"] = pa.ListArray.from_arrays(pa.array([0] * (count + 1), pa.int32()), pa.array([], pa.string()))
        return found
    except (AttributeError, IndexError, StoreError, ValueError):  # a missing record, or one that is none
        return None


def _one_by_one(rows: list[Record | None]) -> Arrays:
    return {
        "version": pa.array([row and row.version for row in rows], pa.int64()),
        "topic": pa.array([row and text_of(encode_text(row.topic)) for row in rows], pa.string()),
        "route": pa.array(
            [text_of(encode_text(row.route)) if row and row.route else None for row in rows], pa.string()
        ),
        "refs": pa.array(
            [[text_of(encode_text(ref)) for ref in row.refs] if row else None for row in rows], pa.list_(pa.string())
        ),
        "body": pa.array([row and row.body for row in rows], pa.binary()),
    }


def read_or_none(raw: bytes | None) -> Record | None:
    """The record, None when it is missing or cannot be read."""
    try:
        return None if raw is None else read_record(raw)
    except StoreError:
        return None


def _reason(state: State, told: bytes | None, stored: bytes | None, sound: bool) -> str | None:
    """Why it is where it is; of one without a readable record, that."""
    if stored is None:
        return "no record"
    reason = told or b""
    if state == "dead":
        reason = stored[: len(stored) - len(_without_reason(stored))].partition(b":")[2]
    elif state == "held":
        reason = reason.partition(b"\n")[0]
    return reason.decode("utf-8", "replace") or (None if sound else "unreadable record")


def _without_reason(raw: bytes) -> bytes:
    """The record behind the reason that stands in front of a dead one."""
    length, _, rest = raw.partition(b":")
    return rest[int(length) :] if length.isdigit() else raw


def texts(raws: list[bytes]) -> Any:
    """Bytes as text; what is no UTF-8 is shown in escapes."""
    try:
        return pa.array(raws, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text_of(raw) for raw in raws], pa.string())


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
