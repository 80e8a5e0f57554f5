"""Writing to the store, in batches and as a stream, exactly once however often Spark repeats a task.

Every row passes the store's fence (`wheel_sched.store.Fence`) in the script that stores it: the ids that a writer has
brought in an epoch are known until the driver closes the epoch. So a task that failed half-way, a speculative twin, an
epoch that is run again from the checkpoint and a zombie that wakes up late add nothing, even when a dispatcher has sent
the first copies off meanwhile. It depends on the ids alone: rows may come in another order or another partition.

A stream's writer is the id of its query, which lies in the checkpoint; its epochs are Spark's batches. A batch's
writer is its `job_id`: a second run of it stores what the first has not, and nothing once one has been committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from retry_topic.message import Message
from retry_topic.message.body_codec import encode_body
from retry_topic.message.headers import published
from retry_topic.message.headers.fields import FIELDS
from retry_topic.spark.source.options import Place
from retry_topic.spark.source.pacing import BYTES_BESIDE_A_BODY, Pace, bytes_left, check_room
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store import Fence, Item, WriterFences

if TYPE_CHECKING:
    import pyarrow as pa

AS_THEY_ARE = Pace()
_ROWS = 4_000  # in one go: a few calls of 500 for each shard, pipelined


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task did."""

    rows: int
    stored: int


class BatchWriter(DataSourceArrowWriter):
    """Stores a DataFrame under a job id."""

    def __init__(self, place: Place, job_id: str, pace: Pace, memory_limit: int | None) -> None:
        self._place = place
        self._pace = pace
        self._memory_limit = memory_limit
        self._fence = Fence(f"job:{job_id}")
        self._fence.check()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return store_batches(self._place, self._fence, iterator, self._pace, self._memory_limit)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with self._place.opened() as store:
            WriterFences(store).close_epoch(self._fence)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was stored stays; a run under the same job id brings the rest."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Stores the batches of a streaming query."""

    def __init__(self, place: Place, pace: Pace, memory_limit: int | None) -> None:
        self._place = place
        self._pace = pace
        self._memory_limit = memory_limit

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamWritten:
        query_id, epoch = query_and_epoch()
        fence = Fence(f"query:{query_id}", epoch)
        written = store_batches(self._place, fence, iterator, self._pace, self._memory_limit)
        return StreamWritten(written.rows, written.stored, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        writers = {message.query_id for message in messages if isinstance(message, StreamWritten)}
        with self._place.opened() as store:
            for query_id in writers:
                WriterFences(store).close_epoch(Fence(f"query:{query_id}", batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        """What was stored stays known to the epoch; its next run brings the rest."""


@dataclass(frozen=True)
class StreamWritten(Written):
    """What one task of a stream did, and for which query."""

    query_id: str


def query_and_epoch() -> tuple[str, int]:
    """Which query and batch this task belongs to.

    Raises:
        ConfigError: Spark does not say; nothing was written.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
    epoch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if not query_id or not epoch:
        raise ConfigError(
            "this Spark does not tell a task its query and batch, without which nothing is exactly once: nothing was "
            "written; write with foreachBatch and a job_id made of both"
        )
    return query_id, int(epoch)


def store_batches(
    place: Place, fence: Fence, batches: Iterator[pa.RecordBatch], pace: Pace, memory_limit: int | None
) -> Written:
    """Store what one task was given.

    Args:
        place: where.
        fence: which knows what was stored before.
        batches: the rows.
        pace: how dues are moved.
        memory_limit: bytes the server may have in use; None: as many as it lets us.

    Raises:
        Rejected: a row cannot be stored, or its block would not fit; nothing of its block was. Rows before it stay, and
            are known to the fence.
        StoreError: the store could not be reached, or refused.
    """
    rows = stored = 0
    with place.opened() as store:
        for batch in batches:
            for at in range(0, batch.num_rows, _ROWS):
                part = batch.slice(at, _ROWS)
                items = items_of(part, pace)
                if memory_limit is not None:
                    needed = sum(len(item.id) + len(item.body) + BYTES_BESIDE_A_BODY for item in items)
                    check_room(needed, bytes_left(store, memory_limit), f"the next {len(items):,} rows")
                stored += WriterFences(store).schedule(items, fence).accepted
                rows += part.num_rows
    return Written(rows, stored)


def items_of(batch: pa.RecordBatch, pace: Pace = AS_THEY_ARE) -> list[Item]:
    """Rows as items.

    Args:
        batch: the rows.
        pace: how dues are moved. Defaults to not at all.

    Raises:
        Rejected: a row cannot be stored, with its id.
    """
    columns: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns[name] = (_instants(column) if name == "due" else column).to_pylist()
    nothing: list[Any] = [None] * batch.num_rows
    ids = columns["id"]
    if None in ids:
        raise Rejected(f"{ids.count(None)} rows have no id: none of these {len(ids)} rows was stored; drop them first")
    dues = columns.get("due_ms") or columns.get("due") or nothing
    if pace.spread_ms:
        dues = [None if own is None else pace.due_ms(row_id, own) for row_id, own in zip(ids, dues, strict=True)]
    topics = [topic or "" for topic in columns.get("topic", nothing)]
    routes = columns.get("route", nothing)
    refs = columns.get("refs")
    if "value" in columns:
        keys, headers = columns.get("key", nothing), columns.get("headers", nothing)
        now_ms = time.time_ns() // 1_000_000
        bodies = [
            encode_body(_with_id(Message(topic, _bytes(value) or b"", _bytes(key), _headers(pairs)), row_id, now_ms))
            for row_id, topic, value, key, pairs in zip(ids, topics, columns["value"], keys, headers, strict=True)
        ]
    else:
        bodies = [_bytes(body) or b"" for body in columns["body"]]
    if refs is None:
        return [Item(*row) for row in zip(ids, dues, bodies, topics, [()] * len(ids), routes, strict=True)]
    tuples = [tuple(names or ()) for names in refs]
    return [Item(*row) for row in zip(ids, dues, bodies, topics, tuples, routes, strict=True)]


def _with_id(message: Message, row_id: str, now_ms: int) -> Message:
    """A message that is new has the id of its row; one that is a retry has its own."""
    return published(message, row_id, now_ms) if message.header(FIELDS["id"].header) is None else message


def _instants(column: Any) -> Any:
    """Timestamps as whole ms, up: nothing fires early."""
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    return compute.cast(compute.ceil(compute.divide(micros.cast(pa.float64()), 1000.0)), pa.int64())


def _headers(pairs: Any) -> tuple[tuple[str, bytes], ...]:
    if not pairs:
        return ()
    given = pairs.items() if isinstance(pairs, dict) else pairs
    return tuple((name, _bytes(content) or b"") for name, content in given)


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
