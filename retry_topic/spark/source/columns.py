"""Turns packed pages of a scan into Arrow columns, many rows in one step.

The server packs all ids of a page into one string and all records into another, and sends their lengths. So a column of
ids is a view of the string. numpy reads the numbers at the start of all records at once, one digit in each step. Then
each field is a slice between two offsets. If a record of a batch is unreadable or missing, this module reads the batch
row by row instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wheel_sched.errors import StoreError
from wheel_sched.store.core.items import Record, State, encode_text, read_record
from wheel_sched.store.core.scan import BulkPage

Arrays = dict[str, Any]  # name -> Arrow array, of the same length each

compute: Any = pc  # PyArrow creates its functions at run time

_DIGITS = 15  # no number in a record has more digits
_GREATEST = 2**63 - 1  # greatest version that fits Spark's bigint
_COLON = b":"
_VIEWABLE = 2**31 - 1  # greatest size that Arrow's 32-bit offsets reach


def places(shard: int, state: State, pages: Sequence[BulkPage], names: set[str]) -> Arrays:
    """The columns id, state, shard and at_ms, each only if `names` has it."""
    lengths = _whole(page.id_lengths for page in pages)
    found: Arrays = {}
    if "id" in names:
        ends = np.cumsum(lengths)
        raw = b"".join([page.ids for page in pages])
        found["id"] = texts(_slices(raw, ends - lengths, ends))
    if "state" in names:
        found["state"] = pa.repeat(pa.scalar(state, pa.string()), len(lengths))
    if "shard" in names:
        found["shard"] = pa.repeat(pa.scalar(shard, pa.int32()), len(lengths))
    if "at_ms" in names:
        found["at_ms"] = pa.array(_whole(page.scores for page in pages), pa.int64())
    return found


def items(shard: int, state: State, pages: Sequence[BulkPage], names: set[str]) -> Arrays:
    """The columns of the form `items`, each only if `names` has it."""
    found = places(shard, state, pages, names)
    wanted = names - found.keys()
    if not wanted:
        return found
    stored = b"".join([page.records for page in pages])
    lengths = _whole(page.record_lengths for page in pages)
    reasons_raw = [reason for page in pages for reason in page.reasons]
    parts = _in_bulk(state, stored, lengths, reasons_raw, wanted)
    found.update(_one_by_one(state, _apart(stored, lengths), reasons_raw) if parts is None else parts)
    return {name: found[name] for name in names}


def _whole(lists: Iterable[bytes]) -> Any:
    """Space-separated numbers as an array of int64."""
    text = pa.array([b" ".join(lists)], pa.binary()).cast(pa.string())
    # through float64: a server may write a score as 4e+12
    return compute.split_pattern(text, " ").values.cast(pa.float64()).cast(pa.int64()).to_numpy()


def _slices(raw: bytes, starts: Any, stops: Any) -> Any:
    """The bytes between each start and its stop, as an Arrow array. Starts and stops are in ascending order."""
    count = len(starts)
    edges: Any = np.empty(2 * count, np.int32)
    edges[0::2], edges[1::2] = starts, stops
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(raw)]
    if (starts[1:] == stops[:-1]).all():  # no gaps: a view needs no copy
        buffers[1] = pa.py_buffer(np.append(edges[0::2], edges[-1:]))
        return pa.Array.from_buffers(pa.binary(), count, buffers)
    between = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return between.take(pa.array(np.arange(0, 2 * count - 1, 2)))


def _in_bulk(
    state: State, stored: bytes, lengths: Any, reasons_raw: list[bytes | None], wanted: set[str]
) -> Arrays | None:
    """The wanted columns of records; None when a record is missing or not readable."""
    if len(stored) > _VIEWABLE or (lengths < 0).any():
        return None
    # colons after the last record, so that a truncated number still ends
    text = np.frombuffer(stored + 8 * _COLON, np.uint8)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    why_length, why = _numbers(text, begins) if state == "dead" else (0, begins)
    start = why + why_length
    mark, at = _numbers(text, start)
    version, at = _numbers(text, at)
    topic_length, at = _numbers(text, at)
    route_length, at = _numbers(text, at)
    refs_length, topic = _numbers(text, at)
    route = topic + topic_length
    refs = route + route_length
    body = refs + refs_length
    sound = (mark == 1) & (text[np.minimum(start + 1, len(text) - 1)] == ord(_COLON)) & (body <= ends)
    for number in (why_length, version, topic_length, route_length, refs_length):
        sound &= number >= 0
    if not sound.all():
        return None
    made: dict[str, Callable[[], Any]] = {
        "version": lambda: pa.array(version, pa.int64()),
        "topic": lambda: texts(_slices(stored, topic, route)),
        "route": lambda: _or_null(texts(_slices(stored, route, refs))),
        "refs": lambda: _lists(_slices(stored, refs, body)),
        "body": lambda: _slices(stored, body, ends),
        "reason": lambda: _reasons(state, reasons_raw, _slices(stored, why, start)),
    }
    return {name: make() for name, make in made.items() if name in wanted}


def _numbers(text: Any, at: Any) -> tuple[Any, Any]:
    """Read a number and the colon after it at each offset `at` of the bytes `text` (both are arrays of numpy).

    Returns the numbers, -1 where there is none, and the offsets after the colons.
    """
    first = at = np.minimum(at, len(text) - 1)
    values: Any = np.zeros(len(at), np.int64)
    for _ in range(_DIGITS):
        digits = text[at] - ord("0")  # unsigned: a byte below "0" becomes a number above 9
        goes_on = digits < 10
        if not goes_on.any():
            break
        values = np.where(goes_on, values * 10 + digits, values)
        at = at + goes_on
    ended = (text[at] == ord(_COLON)) & (at > first)
    return np.where(ended, values, -1), at + 1


def _or_null(found: Any) -> Any:
    """The texts, with null in place of empty ones."""
    return compute.if_else(compute.equal(found, ""), pa.scalar(None, pa.string()), found)


def _lists(found: Any) -> Any:
    """Each text as a list of its lines."""
    if not compute.any(compute.greater(compute.binary_length(found), 0)).as_py():
        nothing = pa.array(np.zeros(len(found) + 1, np.int32))
        return pa.ListArray.from_arrays(nothing, pa.array([], pa.string()))
    return pa.array([text.split("\n") if text else [] for text in texts(found).to_pylist()], pa.list_(pa.string()))


def _reasons(state: State, reasons_raw: list[bytes | None], of_dead: Any) -> Any:
    if state == "due":
        return pa.nulls(len(of_dead), pa.string())
    if state == "dead":
        reasons_raw = of_dead.to_pylist()
    return pa.array([_reason(state, raw) for raw in reasons_raw], pa.string())


def _reason(state: State, reasons_raw: bytes | None) -> str | None:
    raw = reasons_raw or b""
    if state == "held":
        raw = raw.partition(b"\n")[0]
    return raw.decode("utf-8", "replace") or None


def _apart(stored: bytes, lengths: Any) -> list[bytes | None]:
    """Split packed records by their lengths. None for a missing record."""
    found: list[bytes | None] = []
    at = 0
    for length in lengths.tolist():
        found.append(None if length < 0 else stored[at : at + length])
        at += max(0, length)
    return found


def _one_by_one(state: State, stored: list[bytes | None], reasons_raw: list[bytes | None]) -> Arrays:
    """All columns of records, row by row. Records may be damaged."""
    reasons = reasons_raw or [None] * len(stored)
    records = stored
    if state == "dead":
        split = [(b"", None) if raw is None else _without_reason(raw) for raw in stored]
        reasons, records = [reason for reason, _ in split], [record for _, record in split]
    rows = [read_or_none(raw) for raw in records]
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
        "reason": pa.array(
            [
                "no record" if raw is None else _reason(state, why) or (None if row else "unreadable record")
                for raw, why, row in zip(stored, reasons, rows, strict=True)
            ],
            pa.string(),
        ),
    }


def read_or_none(raw: bytes | None) -> Record | None:
    """The record; None when it is missing or not readable, or when its version does not fit Spark's bigint."""
    try:
        record = None if raw is None else read_record(raw)
    except StoreError:
        return None
    return record if record and abs(record.version) <= _GREATEST else None


def _without_reason(raw: bytes) -> tuple[bytes, bytes]:
    """Split a stored dead letter into its reason and its record."""
    length, _, rest = raw.partition(b":")
    return (rest[: int(length)], rest[int(length) :]) if length.isdigit() else (b"", raw)


def texts(found: Any) -> Any:
    """An array of bytes as an array of text. Bytes that are not UTF-8 become escapes such as \\xff."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text_of(raw) for raw in found.to_pylist()], pa.string())


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
