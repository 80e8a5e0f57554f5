"""Writes batches and streams to the store, exactly once, however often Spark repeats a task.

The script that stores a row also checks the store's writer fence (`wheel_sched.store.Fence`). The fence keeps the ids
that a writer has stored in an epoch until the driver closes the epoch; a closed epoch accepts nothing. So no row is
stored twice: not by a repeated task, not by a speculative copy, not by an epoch that runs again from the checkpoint,
and not by a late task that Spark no longer waits for. This holds even if a dispatcher has published the first copies
meanwhile. Only the ids count: rows may come in another order or partition.

The writer of a stream is the id of its query, from the checkpoint; its epochs are Spark's batches. The writer of a
batch is its `job_id`: a second run stores what the first one did not, and nothing once a run has been committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import published
from retry_topic.message.headers.state import FIELDS
from retry_topic.spark.source.options import StorePlace
from retry_topic.spark.source.pacing import BYTES_BESIDE_A_BODY, DueSpread, bytes_left, check_room
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store import Fence, Item, WriterFences

if TYPE_CHECKING:
    import pyarrow as pa

UNCHANGED = DueSpread()
_ROWS = 4_000  # rows in one pipelined round trip: a few calls of 500 for each shard


@dataclass(frozen=True)
class StoreWritten(WriterCommitMessage):
    """How many rows one task of a batch had, and how many of them were new to the store."""

    rows: int
    stored: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame with a job id to the store."""

    def __init__(self, place: StorePlace, job_id: str, spread: DueSpread, memory_limit: int | None) -> None:
        self._place = place
        self._spread = spread
        self._memory_limit = memory_limit
        self._fence = Fence(f"job:{job_id}")
        self._fence.check()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoreWritten:
        return store_batches(self._place, self._fence, iterator, self._spread, self._memory_limit)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with self._place.opened() as store:
            WriterFences(store).close_epoch(self._fence)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing. Stored rows stay, and a run with the same job id stores the rest."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query to the store."""

    def __init__(self, place: StorePlace, spread: DueSpread, memory_limit: int | None) -> None:
        self._place = place
        self._spread = spread
        self._memory_limit = memory_limit

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamWritten:
        query_id, epoch = query_and_epoch()
        fence = Fence(f"query:{query_id}", epoch)
        written = store_batches(self._place, fence, iterator, self._spread, self._memory_limit)
        return StreamWritten(written.rows, written.stored, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        writers = {message.query_id for message in messages if isinstance(message, StreamWritten)}
        with self._place.opened() as store:
            for query_id in writers:
                WriterFences(store).close_epoch(Fence(f"query:{query_id}", batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        """Do nothing. The fence knows the stored rows, and the next run of the epoch stores the rest."""


@dataclass(frozen=True)
class StreamWritten(StoreWritten):
    """How many rows one task of a stream had and stored, and the id of its query."""

    query_id: str


def query_and_epoch() -> tuple[str, int]:
    """The id of the query and the number of the batch that this task belongs to.

    Raises:
        ConfigError: Spark does not give them; nothing was written.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
    epoch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if not query_id or not epoch:
        raise ConfigError(
            "this Spark does not give a task its query and batch, so a stream cannot be written exactly once: nothing "
            "was written; use foreachBatch with a job_id made of query id and batch number"
        )
    return query_id, int(epoch)


def store_batches(
    place: StorePlace, fence: Fence, batches: Iterator[pa.RecordBatch], spread: DueSpread, memory_limit: int | None
) -> StoreWritten:
    """Store the rows of one task, in blocks.

    Args:
        place: the store.
        fence: the writer and epoch of the rows.
        batches: the rows.
        spread: how the due times are delayed.
        memory_limit: how many bytes the server may use. None: no check here; the server applies its own limit.

    Raises:
        Rejected: a row cannot be stored, or its block does not fit. Nothing of this block was stored. Earlier blocks
            stay, and the fence knows them.
        StoreError: the store could not be reached, or refused the rows.
    """
    rows = stored = 0
    with place.opened() as store:
        for batch in batches:
            for at in range(0, batch.num_rows, _ROWS):
                part = batch.slice(at, _ROWS)
                items = items_of(part, spread)
                if memory_limit is not None:
                    needed = sum(len(item.id) + len(item.body) + BYTES_BESIDE_A_BODY for item in items)
                    check_room(needed, bytes_left(store, memory_limit), f"the next {len(items):,} rows")
                stored += WriterFences(store).schedule(items, fence).accepted
                rows += part.num_rows
    return StoreWritten(rows, stored)


def items_of(batch: pa.RecordBatch, spread: DueSpread = UNCHANGED) -> list[Item]:
    """The rows as items of the store.

    Args:
        batch: the rows.
        spread: how the due times are delayed. Defaults to no change.

    Raises:
        Rejected: rows have no id, or a row cannot be encoded as a message.
    """
    columns: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns[name] = (_instants(column) if name == "due" else column).to_pylist()
    nothing: list[Any] = [None] * batch.num_rows
    ids = columns["id"]
    if None in ids:
        raise Rejected(
            f"{ids.count(None)} rows have no id: none of these {len(ids)} rows was stored; drop rows without an id"
        )
    dues = columns.get("due_ms") or columns.get("due") or nothing
    if spread.spread_ms:
        dues = [None if own is None else spread.due_ms(row_id, own) for row_id, own in zip(ids, dues, strict=True)]
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
    """Give a new message the id of its row. A retry already has an id in its headers."""
    return published(message, row_id, now_ms) if message.header(FIELDS["id"].header) is None else message


def _instants(column: Any) -> Any:
    """Timestamps as whole ms, rounded up, so that no message is early."""
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
