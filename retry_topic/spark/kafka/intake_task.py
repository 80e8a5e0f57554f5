"""The work of one Spark task of the intake: it runs the retry service's intake on the rows of a DataFrame.

As in the service, one script stores a log batch with its position. Ids, source names and the check of the position are
the same. So each record is stored once, even if tasks repeat, epochs run again or services run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from retry_topic.brokers.kafka.records import from_parts, from_record
from retry_topic.connection import Connection
from retry_topic.intake.from_log import IntakeFromLog
from retry_topic.message import Message, Source
from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics, intake_group_of, source_of
from retry_topic.policy import load_policies
from retry_topic.spark.kafka.availability import retry_until_available
from retry_topic.spark.kafka.options import Settings, broker_of, check_topics
from retry_topic.spark.kafka.reading import Range, records
from retry_topic.spark.kafka.row_log import RowLog
from retry_topic.spark.source.options import StorePlace
from wheel_sched.errors import BrokerError
from wheel_sched.store import LogIntake

if TYPE_CHECKING:
    import pyarrow as pa

    from retry_topic.brokers.kafka import KafkaBroker
    from wheel_sched.store import DelayStore

_BATCH = 250
SUMMARY = "topic string, partition int, position bigint, records bigint, waiting bigint, dead bigint, repeated bigint"


@dataclass(frozen=True, slots=True)
class IntakeTask:
    """The function that each task runs, with all its settings.

    Args:
        place: the store.
        settings: librdkafka settings of the cluster that has the group's dead topic.
        group: the consumer group of the retry topic.
        policies: the retry policies, as TOML.
        redelivery, spring, secrets, history, reference_above, topics, origins: see `Transport` of the intake.
    """

    place: StorePlace
    settings: Settings
    group: str
    policies: str
    redelivery: str = "group"
    spring: bool = False
    secrets: tuple[bytes, ...] = ()
    history: int = 0
    reference_above: int = 0
    topics: GroupTopics = NAMED_AFTER_GROUP
    origins: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Store the rows of a task. Return one row for each partition, with the columns `SUMMARY`."""
        import pyarrow

        broker = broker_of(self.settings)
        done = []
        with self.place.opened() as store:
            intake = IntakeFromLog(
                Connection(store, broker),
                self.group,
                load_policies(self.policies),
                redelivery=self.redelivery,
                origins=self.origins,
                spring=self.spring,
                secrets=self.secrets,
                history=self.history,
                reference_above=self.reference_above,
                topics=self.topics,
            )
            for (topic, partition), rows in groupby(messages_in(batches), _partition_of):
                done.append(self._take(store, broker, intake, topic, partition, rows))
        kinds = [("topic", pyarrow.string()), ("partition", pyarrow.int32())]
        kinds += [(name, pyarrow.int64()) for name in ("position", "records", "waiting", "dead", "repeated")]
        yield pyarrow.RecordBatch.from_pylist(done, schema=pyarrow.schema(kinds))

    def _take(
        self,
        store: DelayStore,
        broker: KafkaBroker,
        intake: IntakeFromLog,
        topic: str,
        partition: int,
        rows: Iterator[Message],
    ) -> dict[str, Any]:
        reader = intake_group_of(self.group)
        retry_until_available(lambda: check_topics(broker, (topic,)))  # the topic may have been deleted since
        source = source_of(reader, retry_until_available(lambda: broker.topic_id(topic)), partition)

        def between(begin: int, end: int) -> Iterator[Message]:
            for page in records(self.settings, Range(topic, partition, begin, end), lossy=True):
                yield from map(from_record, page)

        (position,) = retry_until_available(lambda: LogIntake(store).positions([source]))
        log = RowLog(source, rows, position, between)
        counts = {"waiting": 0, "dead": 0, "repeated": 0}
        while (part := log.poll(_BATCH)) is not None:
            for taken in intake.take(log, part, retry_until_available):
                counts["repeated" if taken.duplicate else "waiting" if taken.dead is None else "dead"] += 1
        if log.records:
            commit_position(broker, self.group, topic, partition, log.position)
        return {"topic": topic, "partition": partition, "position": log.position, "records": log.records, **counts}


def commit_position(broker: KafkaBroker, group: str, topic: str, partition: int, position: int | None) -> None:
    """Commit the position, so that `kafka lag` shows it. Ignores a failure.

    The commit fails while services are members of the group. They commit their positions themselves.
    """
    from confluent_kafka import TopicPartition

    if position is not None:
        with suppress(BrokerError):
            broker.groups.put(intake_group_of(group), [TopicPartition(topic, partition, position)])


def messages_in(batches: Iterator[pa.RecordBatch]) -> Iterator[Message]:
    """The rows that the JVM or the Python connector has read, as messages."""
    for batch in batches:
        columns: dict[str, list[Any]] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            columns[name] = column.cast("int64").to_pylist() if name == "timestamp" else column.to_pylist()
        for at, topic in enumerate(columns["topic"]):
            known, micros = columns["timestampType"][at] >= 0, columns["timestamp"][at]
            source = Source(
                topic,
                columns["partition"][at],
                str(columns["offset"][at]),
                micros // 1000 if known and micros is not None else None,
            )
            pairs = columns["headers"][at]
            headers = [(pair["key"], pair["value"]) for pair in pairs] if pairs else None
            yield from_parts(source, columns["key"][at], columns["value"][at], headers)


def _partition_of(message: Message) -> tuple[str, int]:
    assert message.source is not None  # noqa: S101  # `messages_in` sets it
    return message.source.topic, message.source.partition
