"""intake: stores the failed messages of a consumer group's Kafka retry topic, as a stream, each record once.

The job does what the intake of `wheel-sched serve` does. It uses the same policies, ids and positions in the store. One
script stores the records of a batch together with the new position. So the job may take turns with services or run
beside them: no record is lost or stored twice. The checkpoint is optional: without one, a run begins at the position in
the store. Services (`wheel-sched serve`) publish the due messages; Spark never does.

The JVM connector reads the topic if the Spark session has its jars; else `format("wheelsched-kafka")` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from retry_topic.consumer.config import secrets_problems
from retry_topic.intake.origins import origins_problems
from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics, intake_group_of, source_of
from retry_topic.policy import PolicySet, RetryPolicy
from retry_topic.policy.dumping import dump_policies
from retry_topic.spark.faults import plain_errors
from retry_topic.spark.kafka.availability import retry_until_available
from retry_topic.spark.kafka.connector import Connector, Kafka, choose, settings_of_cluster, stream
from retry_topic.spark.kafka.offsets import ends_of
from retry_topic.spark.kafka.options import Offsets, Settings, broker_of, check_topics
from retry_topic.spark.source.options import StorePlace
from wheel_sched.errors import ConfigError
from wheel_sched.store import LogIntake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from retry_topic.spark.kafka.intake_task import IntakeTask

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
_COUNTS = ("records", "waiting", "dead", "repeated")
_POLL_S = 1


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How much of one partition is in the store.

    Args:
        partition: its number in the retry topic.
        position: the next offset to read, as the store knows it; None when the store has no position yet.
        end: the offset after the last record.
        lag: number of offsets still to read, up to `end`. Transaction markers count too.
    """

    partition: int
    position: int | None
    end: int
    lag: int


@dataclass(slots=True)
class IntakeReport:
    """What a run stored. In a dry run: what it would read.

    Args:
        dry_run: whether the run changed nothing and only reports the lag.
        group: the consumer group of the retry topic.
        connector: "jvm" or "python".
        batches: batches of the stream that held records.
        records: records that were read.
        waiting: of the records, messages that now wait for their next attempt, or that another one of their key has
            superseded.
        dead: of the records, messages that became dead letters.
        repeated: of the records, failures that the store already knew.
        partitions: the progress of each partition.
    """

    dry_run: bool
    group: str
    connector: str
    batches: int = 0
    records: int = 0
    waiting: int = 0
    dead: int = 0
    repeated: int = 0
    partitions: list[PartitionProgress] = field(default_factory=list)

    @property
    def lag(self) -> int:
        """The number of offsets still to read, in all partitions."""
        return sum(partition.lag for partition in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lag": self.lag}


@plain_errors
def intake(
    spark: SparkSession,
    place: StorePlace,
    kafka: Kafka,
    group: str,
    policies: PolicySet | RetryPolicy | None = None,
    *,
    redelivery: Literal["group", "origin"] = "group",
    origins: tuple[str, ...] = (),
    headers: Literal["own", "spring"] = "own",
    secrets: tuple[bytes, ...] = (),
    history: int = 0,
    reference_above: int = 0,
    group_topics: GroupTopics = NAMED_AFTER_GROUP,
    connector: Connector = "auto",
    most: int | None = None,
    checkpoint: str | None = None,
    every_s: float | None = None,
    stop: threading.Event | None = None,
    seen: Callable[[IntakeReport], None] | None = None,
    dry_run: bool = False,
) -> IntakeReport:
    """Store the failed messages of a group's retry topic.

    Args:
        spark, place: the session and the store.
        kafka: `host:port,host:port`, or librdkafka settings with `bootstrap.servers`.
        group: the consumer group whose retry topic is read. Use the same settings below as the group's services.
        policies: the retry policies of these services. Defaults to the default policy.
        redelivery, origins, headers, secrets, history, reference_above, group_topics: see `ServiceConfig`.
        connector: what reads the topic. "auto" (default): "jvm" if the session has the connector's jars and `kafka` is
            only an address, else "python".
        most: about this many offsets in one batch. Defaults to None: all.
        checkpoint: folder of the query; every node must reach it. Defaults to None: a temporary one.
        every_s: start a batch this often until `stop` is set. Defaults to None: read what is there, then end.
        stop: setting it ends a run with `every_s`; the next run repeats an unfinished batch. Defaults to None.
        seen: called with the report when further batches are done. Defaults to None.
        dry_run: change nothing, only report the lag. Defaults to False.

    Raises:
        ConfigError: an argument is wrong, or a topic or namespace is missing; nothing was stored.
        StoreError, BrokerError, JobFailed: what was stored stays; another run does the rest.
    """
    from retry_topic.spark.kafka.intake_task import IntakeTask

    settings = _checked_settings(kafka, redelivery, origins, headers, secrets, most, every_s)
    topic = group_topics.of(group)["retry"]
    check_topics(broker_of(settings), (topic,))
    service = (redelivery, headers == "spring", secrets, history, reference_above, group_topics, origins)
    task = IntakeTask(place, settings, group, _policy_text(policies), *service)
    progress = partial(progress_of, place, settings, group, topic)
    report = IntakeReport(dry_run, group, choose(spark, settings, connector), partitions=progress())
    if not dry_run:
        rows = stream(spark, report.connector, settings, _start_of(topic, report), most)
        _follow(_started(take_in(rows, task), checkpoint, every_s), report, stop, progress, seen)
    return report


def _policy_text(policies: PolicySet | RetryPolicy | None) -> str:
    """The policies as TOML text, for the tasks."""
    return dump_policies(PolicySet(policies) if isinstance(policies, RetryPolicy) else policies or PolicySet())


def _start_of(topic: str, report: IntakeReport) -> Offsets:
    """The offsets at which a stream without a checkpoint begins."""
    return {topic: {str(partition.partition): partition.end - partition.lag for partition in report.partitions}}


def _started(rows: DataFrame, checkpoint: str | None, every_s: float | None) -> StreamingQuery:
    """Start the query and return it. Its sink stores nothing, because the tasks have stored the records already."""
    writer = rows.observe("intake", *_sums()).writeStream.format("noop")
    if every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{every_s} seconds")
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    return writer.start()


def take_in(rows: DataFrame, task: IntakeTask) -> DataFrame:
    """A DataFrame whose tasks store the failed messages of `rows`. The tasks run when Spark computes the DataFrame.

    Args:
        rows: all records of a stream or batch of one retry topic, with the columns `COLUMNS`, read by the JVM connector
            or by `format("wheelsched-kafka")`. They must not be filtered.
        task: what each task does.

    Raises:
        ConfigError: a column is missing.
    """
    from retry_topic.spark.kafka.intake_task import SUMMARY

    if missing := [name for name in COLUMNS if name not in rows.columns]:
        raise ConfigError(f"expected columns {', '.join(missing)}, got: {', '.join(rows.columns)}; nothing was stored")
    return rows.select(*COLUMNS).mapInArrow(task, SUMMARY)


def progress_of(place: StorePlace, settings: Settings, group: str, topic: str) -> list[PartitionProgress]:
    """How much of each partition of a group's retry topic is in the store.

    Raises:
        StoreError, BrokerError: the store or the cluster does not answer.
    """
    from confluent_kafka import TopicPartition

    broker, reader = broker_of(settings), intake_group_of(group)
    ends, first = ends_of(broker, [topic])[topic], ends_of(broker, [topic], earliest=True)[topic]
    numbers = sorted(map(int, ends))
    topic_id = retry_until_available(lambda: broker.topic_id(topic))
    sources = [source_of(reader, topic_id, number) for number in numbers]
    with place.opened() as store:
        positions = retry_until_available(lambda: LogIntake(store).positions(sources))
    asked = [TopicPartition(topic, number) for number in numbers]
    known = retry_until_available(lambda: broker.groups.places(reader, asked))
    committed = {part.partition: part.offset for part in known}
    found = []
    for number, position in zip(numbers, positions, strict=True):
        # a service begins in the same way: at the store's position, else at the committed offset, else at the beginning
        at = committed.get(number, 0) if position is None else position
        end = ends[str(number)]
        found.append(PartitionProgress(number, position, end, max(0, end - max(at, first[str(number)]))))
    return found


def _checked_settings(
    kafka: Kafka,
    redelivery: str,
    origins: tuple[str, ...],
    headers: str,
    secrets: tuple[bytes, ...],
    most: int | None,
    every_s: float | None,
) -> Settings:
    problems = secrets_problems(secrets)
    if redelivery not in ("group", "origin"):
        problems.append(f"expected redelivery to be 'group' or 'origin', got: {redelivery!r}")
    problems += origins_problems(origins, redelivery)
    if headers not in ("own", "spring"):
        problems.append(f"expected headers to be 'own' or 'spring', got: {headers!r}")
    if most is not None and most < 1:
        problems.append(f"expected most to be a whole number from 1 up, got: {most!r}")
    if every_s is not None and not 0 <= every_s <= 86_400:
        problems.append(f"expected every_s to be seconds from 0 to a day, got: {every_s!r}")
    settings = settings_of_cluster(kafka, problems)
    if problems:
        raise ConfigError([*problems, "nothing was stored"])
    return settings


def _sums() -> list[Any]:
    from pyspark.sql import functions as f

    return [f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in _COUNTS]


def _follow(
    query: StreamingQuery,
    report: IntakeReport,
    stop: threading.Event | None,
    progress: Callable[[], list[PartitionProgress]],
    seen: Callable[[IntakeReport], None] | None,
) -> None:
    """Add the counts of each batch to the report, until the query ends or `stop` is set. Then stop the query."""
    last_batch = -1
    ended = False
    try:
        while not ended:
            ended = bool(query.awaitTermination(_POLL_S))
            before = report.batches
            last_batch = _add_batches(query, report, last_batch)
            if seen is not None and report.batches != before:
                report.partitions = progress()
                seen(report)
            ended = ended or (stop is not None and stop.is_set())
    finally:
        query.stop()
    report.partitions = progress()


def _add_batches(query: StreamingQuery, report: IntakeReport, last_batch: int) -> int:
    """Add the counts of the batches after `last_batch` to the report. Returns the number of the last batch added."""
    for batch in query.recentProgress:
        number, observed = batch["batchId"], batch["observedMetrics"].get("intake")
        if number <= last_batch or observed is None:
            continue
        last_batch = number
        # Spark Connect gives the row as two fields: its values and its schema
        values = observed["values"] if "values" in observed else observed  # noqa: SIM401  # a Row has no get
        counts = dict(zip(_COUNTS, values, strict=True))
        report.batches += bool(counts["records"])
        for name, count in counts.items():
            setattr(report, name, getattr(report, name) + count)
    return last_batch
