"""What a task of the intake does: the retry service's own intake, over the rows of a DataFrame.

One script stores a slice with its position, as in the service: same ids, same sources, same fence. So tasks that are
repeated, epochs that are run again and services that run beside it take each record in once.
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
from retry_topic.spark.kafka.options import Settings, broker_of, check_topics
from retry_topic.spark.kafka.patience import insist
from retry_topic.spark.kafka.reading import Range, records
from retry_topic.spark.kafka.rows import RowLog
from retry_topic.spark.source.options import Place
from wheel_sched.errors import BrokerError

if TYPE_CHECKING:
    import pyarrow as pa

    from retry_topic.brokers.kafka import KafkaBroker
    from wheel_sched.store import DelayStore

_SLICE = 250
SUMMARY = "topic string, partition int, position bigint, records bigint, waiting bigint, dead bigint, repeated bigint"


@dataclass(frozen=True, slots=True)
class Taker:
    """What tasks need to take rows in.

    Args:
        place: the store.
        settings: librdkafka's, of the cluster that has the group's dead topic.
        group: whose retry topic it is.
        policies: who decides, as TOML.
        redelivery, spring, secrets, history, reference_above, topics, origins: see `Transport`.
    """

    place: Place
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
        """Take the rows of a task in; a row for each partition, as `SUMMARY` has it."""
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
            for (topic, partition), rows in groupby(messages_in(batches), _place_of):
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
        insist(lambda: check_topics(broker, (topic,)))  # it may have been made anew since this process last looked
        source = source_of(reader, insist(lambda: broker.topic_id(topic)), partition)

        def between(begin: int, end: int) -> Iterator[Message]:
            for page in records(self.settings, Range(topic, partition, begin, end), lossy=True):
                yield from map(from_record, page)

        (position,) = insist(lambda: store.positions([source]))
        log = RowLog(source, rows, position, between)
        counts = {"waiting": 0, "dead": 0, "repeated": 0}
        while (part := log.poll(_SLICE)) is not None:
            for taken in intake.take(log, part, insist):
                counts["repeated" if taken.duplicate else "waiting" if taken.dead is None else "dead"] += 1
        if log.records:
            tell(broker, self.group, topic, partition, log.position)
        return {"topic": topic, "partition": partition, "position": log.position, "records": log.records, **counts}


def tell(broker: KafkaBroker, group: str, topic: str, partition: int, position: int | None) -> None:
    """Commit how far a partition is taken in, for those who look; a service that runs beside does so itself."""
    from confluent_kafka import TopicPartition

    if position is not None:
        with suppress(BrokerError):
            broker.groups.put(intake_group_of(group), [TopicPartition(topic, partition, position)])


def messages_in(batches: Iterator[pa.RecordBatch]) -> Iterator[Message]:
    """Rows, with the columns that both connectors give, as messages."""
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
            told = [(pair["key"], pair["value"]) for pair in pairs] if pairs else None
            yield from_parts(source, columns["key"][at], columns["value"][at], told)


def _place_of(message: Message) -> tuple[str, int]:
    assert message.source is not None  # noqa: S101  # they are made with one
    return message.source.topic, message.source.partition
