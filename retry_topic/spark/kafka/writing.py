"""Writes topics exactly once: each task writes its part of an epoch in one transaction, with a mark of the epoch.

So the topics hold a part together with its mark, or nothing of it. A task that finds the mark writes nothing. Such a
task may be a repeated one, one of an epoch that runs again, or a late one that Spark no longer waits for. All
transactions of a part have one id, and opening the id fences its previous owner. Readers must read committed records
only.

This needs one condition: when a failed epoch runs again, Spark must partition it into the same parts. It does so when
there is no shuffle between source and sink, or when a repartition by a fixed number comes last. The writer refuses a
part whose number of rows has changed. Spark may partition a finished epoch in any way, because nothing of it is written
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from retry_topic.message import Message, Source
from retry_topic.spark.kafka.marks import Part, close_epoch, mark_of, note_epoch, rows_written
from retry_topic.spark.kafka.options import KafkaWriteOptions, broker_of
from retry_topic.spark.source.writing import query_and_epoch
from wheel_sched.errors import ConfigError, Rejected

if TYPE_CHECKING:
    import pyarrow as pa

    from retry_topic.brokers.kafka import KafkaBroker
    from retry_topic.brokers.kafka.groups import Groups


@dataclass(frozen=True)
class TopicWritten(WriterCommitMessage):
    """What one task wrote. `repeated`: the topics already had the rows of the task, so the task wrote nothing."""

    writer: str
    rows: int
    repeated: bool


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame with a job id to topics."""

    def __init__(self, target: KafkaWriteOptions, job_id: str) -> None:
        self._target = target
        self._writer = f"job-{job_id}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TopicWritten:
        return write_part(self._target, _part(self._writer, 0), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        close_epoch(_groups(self._target), self._writer, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing. Written parts stay, and a run with the same job id writes the rest."""


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query to topics."""

    def __init__(self, target: KafkaWriteOptions) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TopicWritten:
        query_id, epoch = query_and_epoch()
        return write_part(self._target, _part(f"query-{query_id}", epoch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        for writer in {message.writer for message in messages if isinstance(message, TopicWritten)}:
            close_epoch(_groups(self._target), writer, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        """Do nothing. Written parts stay, and the next run of the epoch writes the rest."""


def _part(writer: str, epoch: int) -> Part:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise ConfigError("only a Spark task can write rows: nothing was written")
    return Part(writer, epoch, context.partitionId())


def write_part(target: KafkaWriteOptions, part: Part, batches: Iterator[pa.RecordBatch]) -> TopicWritten:
    """Write the rows of one task, once.

    Raises:
        Rejected: a row cannot be written, or the part was written with other rows before; nothing was written.
        BrokerError: the cluster does not answer. The task may be repeated: the part is written once.
    """
    from retry_topic.spark.kafka.transaction import Transaction

    broker = broker_of(target.settings)
    groups = _groups(target)
    transaction = Transaction(broker, part.name)  # comes first: from here on no other task can write this part
    if note_epoch(groups, part, in_doubt=target.in_doubt):
        return TopicWritten(part.writer, sum(batch.num_rows for batch in batches), repeated=True)
    before = rows_written(groups, part)
    if before is not None:
        rows = sum(batch.num_rows for batch in batches)
        if rows != before:
            raise Rejected(
                f"part {part.number} of epoch {part.epoch} of {part.writer} was written with {before} rows and has "
                f"{rows} now, so rows could be missing or doubled: nothing was written; the same rows must come again"
            )
        return TopicWritten(part.writer, rows, repeated=True)
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
    return TopicWritten(part.writer, rows, repeated=False)


def messages_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Message]:
    """The rows as messages for `topic`; None: for the topic in each row's column `topic`.

    Raises:
        Rejected: a row has no topic.
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
        pairs = [(pair["key"], pair["value"]) for pair in headers[at] or ()]  # Kafka's own header names
        yield from_parts(Source(target, 0, ""), _bytes(keys[at]), _bytes(value), pairs)


def _groups(target: KafkaWriteOptions) -> Groups:
    return broker_of(target.settings).groups


def _check_topic(broker: KafkaBroker, topic: str) -> None:
    if not broker.topology.partitions(topic):
        raise Rejected(f"there is no topic {topic}: nothing of this part was written")


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
