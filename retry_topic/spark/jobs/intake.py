"""intake: the retry topics of a consumer group into the delay store, as a stream, each record once.

What the intake of `wheel-sched serve` does, over Spark: same policies, same ids, same positions in the store, moved in
the script that stores the records. So it may take turns with services, or run beside them, and nothing is lost or comes
twice; and its checkpoint is a convenience: without one a run begins where the store says. What is due is released by
services (`wheel-sched serve`), never by Spark.

It reads with the JVM connector where that is among the session's jars, else with `format("wheelsched-kafka")`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from retry_topic.consumer.config import secrets_problems
from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics, intake_group_of, source_of
from retry_topic.policy import PolicySet, RetryPolicy
from retry_topic.policy.dumping import dump_policies
from retry_topic.release.origins import origins_problems
from retry_topic.spark.faults import plain_errors
from retry_topic.spark.kafka.connector import Connector, Kafka, choose, settings_of_cluster, stream
from retry_topic.spark.kafka.options import Offsets, Settings, broker_of, check_topics
from retry_topic.spark.kafka.patience import insist
from retry_topic.spark.source.options import Place
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
_COUNTS = ("records", "waiting", "dead", "repeated")
_LOOK_S = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """How far one partition is taken in.

    Args:
        partition: of the retry topic.
        position: the high-water mark: the next offset to be taken in, as the store has it; None: nothing was.
        end: behind the last record there is.
        lag: offsets between the two (marks of transactions count).
    """

    partition: int
    position: int | None
    end: int
    lag: int


@dataclass(slots=True)
class TakenIn:
    """What was taken in, or would be.

    Args:
        dry_run: nothing was changed.
        group: whose retry topic it is.
        connector: "jvm" or "python".
        batches: of the stream that brought something.
        records: that were read and stored, or known.
        waiting: of them, those that wait for their next attempt.
        dead: those that were given up.
        repeated: failures that the store had already, by another record.
        marks: of each partition.
    """

    dry_run: bool
    group: str
    connector: str
    batches: int = 0
    records: int = 0
    waiting: int = 0
    dead: int = 0
    repeated: int = 0
    marks: list[Mark] = field(default_factory=list)

    @property
    def lag(self) -> int:
        """Offsets that are not taken in yet."""
        return sum(mark.lag for mark in self.marks)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lag": self.lag}


@plain_errors
def intake(
    spark: SparkSession,
    place: Place,
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
    seen: Callable[[TakenIn], None] | None = None,
    dry_run: bool = False,
) -> TakenIn:
    """Take in what failed.

    Args:
        spark: a session.
        place: the store.
        kafka: `host:port,host:port`, or librdkafka settings that name `bootstrap.servers`.
        group: whose retry topic is read.
        policies: who decides; those of the group's services. Defaults to the default policy.
        redelivery, origins, headers, secrets, history, reference_above, group_topics: as `ServiceConfig` has them;
            those of the services.
        connector: what reads; "auto" takes the JVM one where its jars are and the settings are the address alone.
            Defaults to "auto".
        most: offsets in one batch, about. Defaults to None: all there are.
        checkpoint: folder of the query, reachable by all nodes. Defaults to None: one of Spark's own, gone with it.
        every_s: go on until `stop`, a batch so often. Defaults to None: take in what is there now, and end.
        stop: set, it ends a run with `every_s`; the batch at work is left to the next run. Defaults to None: nothing
            ends it.
        seen: called with the report after batches. Defaults to nothing.
        dry_run: change nothing, tell the lag. Defaults to False.

    Raises:
        ConfigError: an argument is wrong, or a topic or namespace is absent; nothing was taken in.
        StoreError, BrokerError, JobFailed: what was taken in stays, and another run does the rest.
    """
    settings = _settings(kafka, redelivery, origins, headers, secrets, most, every_s)
    topic = group_topics.of(group)["retry"]
    broker = broker_of(settings)
    check_topics(broker, (topic,))
    from retry_topic.spark.kafka.taking import Taker

    policies = PolicySet(policies) if isinstance(policies, RetryPolicy) else policies or PolicySet()
    taker = Taker(
        place,
        settings,
        group,
        dump_policies(policies),
        redelivery,
        headers == "spring",
        secrets,
        history,
        reference_above,
        group_topics,
        origins,
    )
    report = TakenIn(dry_run, group, choose(spark, settings, connector), marks=marks_of(place, settings, group, topic))
    if dry_run:
        return report
    start: Offsets = {topic: {str(mark.partition): mark.end - mark.lag for mark in report.marks}}
    done = take_in(stream(spark, report.connector, settings, start, most), taker).observe("intake", *_sums())
    writer = done.writeStream.format("noop")
    writer = (
        writer.trigger(availableNow=True) if every_s is None else writer.trigger(processingTime=f"{every_s} seconds")
    )
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    query = writer.start()
    try:
        _follow(query, report, stop, lambda: marks_of(place, settings, group, topic), seen)
    finally:
        query.stop()
    report.marks = marks_of(place, settings, group, topic)
    return report


def take_in(rows: DataFrame, taker: Any) -> DataFrame:
    """Rows of a retry topic, as either connector reads them, taken in by whoever runs the answer.

    Args:
        rows: a stream or a batch with the columns `COLUMNS`, of one retry topic, as they are read: not filtered.
        taker: see `Taker`.

    Raises:
        ConfigError: a column is missing.
    """
    from retry_topic.spark.kafka.taking import SUMMARY

    if missing := [name for name in COLUMNS if name not in rows.columns]:
        raise ConfigError(
            f"expected columns {', '.join(missing)}, got: {', '.join(rows.columns)}; nothing was taken in"
        )
    return rows.select(*COLUMNS).mapInArrow(taker, SUMMARY)


def marks_of(place: Place, settings: Settings, group: str, topic: str) -> list[Mark]:
    """How far each partition of a group's retry topic is taken in.

    Raises:
        StoreError, BrokerError: one of them does not answer.
    """
    from confluent_kafka import TopicPartition

    from retry_topic.spark.kafka.offsets import ends_of

    broker, reader = broker_of(settings), intake_group_of(group)
    ends, first = ends_of(broker, [topic])[topic], ends_of(broker, [topic], earliest=True)[topic]
    numbers = sorted(map(int, ends))
    topic_id = insist(lambda: broker.topic_id(topic))
    sources = [source_of(reader, topic_id, number) for number in numbers]
    with place.opened() as store:
        positions = insist(lambda: store.positions(sources))
    known = insist(lambda: broker.groups.places(reader, [TopicPartition(topic, number) for number in numbers]))
    committed = {place.partition: place.offset for place in known}
    found = []
    for number, position in zip(numbers, positions, strict=True):
        # as a service begins: where the store says, else where the group has been, else at the beginning
        at = committed.get(number, 0) if position is None else position
        end = ends[str(number)]
        found.append(Mark(number, position, end, max(0, end - max(at, first[str(number)]))))
    return found


def _settings(
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
        raise ConfigError([*problems, "nothing was taken in"])
    return settings


def _sums() -> list[Any]:
    from pyspark.sql import functions as f

    return [f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in _COUNTS]


def _follow(
    query: StreamingQuery,
    report: TakenIn,
    stop: threading.Event | None,
    marks: Callable[[], list[Mark]],
    seen: Callable[[TakenIn], None] | None,
) -> None:
    """Add up what batches did, until the query ends or is to end."""
    counted = -1
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(_LOOK_S))
        before = report.batches
        for progress in query.recentProgress:
            number, told = progress["batchId"], progress["observedMetrics"].get("intake")
            if number <= counted or told is None:
                continue
            counted = number
            # Spark Connect shows the row as one of its values and its schema
            values = told["values"] if "values" in told else told  # noqa: SIM401  # a Row has no get
            counts = dict(zip(_COUNTS, values, strict=True))
            report.batches += bool(counts["records"])
            for name, count in counts.items():
                setattr(report, name, getattr(report, name) + count)
        if seen is not None and report.batches != before:
            report.marks = marks()
            seen(report)
        if stop is not None and stop.is_set():
            return
