"""Writing topics, exactly once: each task writes its part of an epoch in one transaction, with a mark of the epoch.

So a part is in the topics with its mark, or not at all: a task that is repeated, an epoch that is run again from the
checkpoint and a zombie that wakes up late find the mark and write nothing. The transactions of a part have one id: who
opens it fences whoever had it before. Readers must read committed records only.

What it rests on: an epoch that had failed is cut into the same parts when it is run again. Spark does so when the way
from source to sink is narrow, or ends with a repartition by a fixed number. A part that has another number of rows than
it was written with is refused. An epoch that was done may be cut in any way: nothing of it is written again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from retry_topic.message import Message, Source
from retry_topic.spark.kafka.marks import Part, close_epoch, mark_of, note_epoch, rows_written
from retry_topic.spark.kafka.options import Target, broker_of
from retry_topic.spark.source.writing import query_and_epoch
from wheel_sched.errors import ConfigError, Rejected

if TYPE_CHECKING:
    import pyarrow as pa

    from retry_topic.brokers.kafka import KafkaBroker
    from retry_topic.brokers.kafka.groups import Groups


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task did: `repeated` when its rows were there before."""

    writer: str
    rows: int
    repeated: bool


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame under a job id."""

    def __init__(self, target: Target, job_id: str) -> None:
        self._target = target
        self._writer = f"job-{job_id}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_part(self._target, _part(self._writer, 0), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        close_epoch(_groups(self._target), self._writer, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Parts that were written stay; a run under the same job id brings the rest."""


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query_id, epoch = query_and_epoch()
        return write_part(self._target, _part(f"query-{query_id}", epoch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        for writer in {message.writer for message in messages if isinstance(message, Written)}:
            close_epoch(_groups(self._target), writer, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        """Parts that were written stay; the next run of the epoch brings the rest."""


def _part(writer: str, epoch: int) -> Part:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise ConfigError("rows are written by Spark's tasks: nothing was written")
    return Part(writer, epoch, context.partitionId())


def write_part(target: Target, part: Part, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write what one task was given, once.

    Raises:
        Rejected: a row cannot be written, or the part was written with other rows before; nothing was written.
        BrokerError: the cluster does not answer; repeated, the part is written once.
    """
    from retry_topic.spark.kafka.transaction import Transaction

    broker = broker_of(target.settings)
    groups = _groups(target)
    transaction = Transaction(broker, part.name)  # first of all: from here on nobody else writes this part
    if note_epoch(groups, part, in_doubt=target.in_doubt):
        return Written(part.writer, sum(batch.num_rows for batch in batches), repeated=True)
    before = rows_written(groups, part)
    if before is not None:
        rows = sum(batch.num_rows for batch in batches)
        if rows != before:
            raise Rejected(
                f"part {part.number} of epoch {part.epoch} of {part.writer} had {before} rows when it was written, and "
                f"has {rows} now, so that rows could be missing or come twice: nothing was written; what is computed "
                "again must be the same"
            )
        return Written(part.writer, rows, repeated=True)
    rows = 0
    transaction.begin()
    try:
        for batch in batches:
            for message in messages_of(batch, target.topic):
                _check_topic(broker, message.topic)
                transaction.add(message)
            transaction.turn()
            rows += batch.num_rows
        transaction.commit([mark_of(part, rows)])
    except BaseException:
        transaction.abort()
        raise
    return Written(part.writer, rows, repeated=False)


def messages_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Message]:
    """Rows as messages.

    Raises:
        Rejected: one has no topic.
    """
    from retry_topic.brokers.kafka.records import from_parts

    columns: dict[str, list[Any]] = {
        name: column.to_pylist() for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    nothing: list[Any] = [None] * batch.num_rows
    topics = nothing if topic is not None else columns["topic"]
    keys, headers = columns.get("key", nothing), columns.get("headers", nothing)
    for at, value in enumerate(columns["value"]):
        target = topics[at] if topic is None else topic
        if not target:
            raise Rejected("a row has no topic: nothing of this part was written; drop such rows first")
        pairs = [(pair["key"], pair["value"]) for pair in headers[at] or ()]  # named as Kafka has them
        yield from_parts(Source(target, 0, ""), _bytes(keys[at]), _bytes(value), pairs)


def _groups(target: Target) -> Groups:

    return broker_of(target.settings).groups


def _check_topic(broker: KafkaBroker, topic: str) -> None:
    if not broker.topology.partitions(topic):
        raise Rejected(f"there is no topic {topic}: nothing of this part was written")


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
