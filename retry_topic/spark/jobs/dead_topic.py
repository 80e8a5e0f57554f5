"""dlq over Kafka: what lies in a dead topic, sorted and selected as what lies in a store, and sent to its origin.

A dead topic is a log: nothing is taken out of it. So each letter that is sent off leaves a record with its place in
`<dead topic>.replayed`, in the same transaction: it is sent with its record, or not at all. A run looks there first. So
a second run of a selection does nothing, one of a larger selection sends the rest, and one after a failure what the
failed one has not sent, however it is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from retry_topic.dead_letters import replayed_state
from retry_topic.loop_guard import MAX_REPLAYS
from retry_topic.message.headers import read, write
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of
from retry_topic.spark.faults import plain_errors
from retry_topic.spark.jobs.dlq import Replay, repaired, samples_of
from wheel_sched.errors import ConfigError, Rejected

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from retry_topic.brokers.kafka import KafkaBroker
    from retry_topic.spark.kafka.connector import Connector, Kafka
    from retry_topic.spark.kafka.options import Settings

_KEPT = "key binary, value binary, headers array<struct<key:string,value:binary>>"
_LETTERS = (
    "id string, at_ms bigint, topic string, attempt int, replays int, first_failed_ms bigint, last_failed_ms bigint, "
    f"due_ms bigint, error_class string, error_message string, fingerprint string, status int, consumer_group string, "
    f"{_KEPT}"
)
_OUT = f"topic string, {_KEPT}"


@plain_errors
def topic_letters(spark: SparkSession, kafka: Kafka, topic: str, *, connector: Connector = "auto") -> DataFrame:
    """The dead letters in a topic up to its present end, with the columns that `triage` and `select` know.

    `id` is the place in the topic, `headers` are as Kafka has them, `text` is the payload where it is text. A record
    that is no dead letter of ours has no `topic`: it can be sorted, and be sent to a topic that is named.

    Raises:
        ConfigError: there is no such topic.
        BrokerError: the cluster does not answer.
    """
    from pyspark.sql import functions as f

    from retry_topic.spark.kafka.connector import batch
    from retry_topic.spark.kafka.options import broker_of
    from retry_topic.spark.kafka.patience import insist

    settings = _settings(kafka)
    rows = batch(spark, settings, [topic], connector)
    topic_id = insist(lambda: broker_of(settings).topic_id(topic))
    letters = rows.mapInArrow(_Reader(topic_id), _LETTERS)
    return letters.withColumn("text", f.try_validate_utf8(f.col("value").cast("string")))


@plain_errors
def replay_topic(
    letters: DataFrame,
    kafka: Kafka,
    topic: str,
    *,
    to: str = "origin",
    origins: Sequence[str] = (),
    repair: str | None = None,
    max_replays: int = MAX_REPLAYS,
    dry_run: bool = False,
) -> Replay:
    """Send these dead letters off again, each once however often this is run; their attempts start anew.

    Args:
        letters: a selection of `topic_letters`.
        kafka: the cluster.
        topic: the dead topic they lie in.
        to: "origin", where each first failed; "group", the redelivery topic of its consumer group; or a topic.
            Defaults to "origin".
        origins: further topics that letters may go to by what their headers say. Defaults to none: those that the
            group reads whose dead topic it is (`<group>.dead`), and its redelivery topic.
        repair: SQL for the new payload, see `replay`.
        max_replays: the loop guard, by the letter's headers. Defaults to 3.
        dry_run: change nothing, count. Defaults to False.

    Raises:
        ConfigError: an argument is wrong, a topic is absent, or headers name one that is none of the group's; nothing
            was replayed.
        Rejected: another run began meanwhile; what was sent stays sent, and another run does the rest.
        BrokerError, JobFailed: what was sent stays sent, and a second run does the rest.
    """
    from pyspark.sql import functions as f

    from retry_topic.spark.kafka.marks import MARKS
    from retry_topic.spark.kafka.options import broker_of, check_topics
    from retry_topic.spark.kafka.patience import insist
    from retry_topic.spark.kafka.runs import begin_run, is_last

    settings = _settings(kafka)
    broker, ledger = broker_of(settings), f"{topic}.replayed"
    check_topics(broker, (topic,))
    parts = broker.topology.partitions(topic)
    place = insist(lambda: broker.topic_id(topic)) + "/"
    chosen = repaired(letters, repair, _columns(_LETTERS)).withColumn("target", _target(to))
    chosen = chosen.withColumn("ours", f.col("id").startswith(place)).dropDuplicates(["id"])
    named = to in ("origin", "group")  # by the letters' headers
    allowed = _Allowed(broker, topic, frozenset(origins)) if named else None
    report = _counted(_judged(chosen, settings, broker, ledger, max_replays), broker, topic, allowed)
    if dry_run:
        report.samples = samples_of(letters, repair)
        return report
    report.dry_run = False
    if not report.replayed:
        return report
    broker.topology.create([MARKS], partitions=1, settings={"cleanup.policy": "compact"})
    broker.topology.create([ledger], partitions=parts, settings={"cleanup.policy": "compact"})
    job = begin_run(broker, topic, parts)
    judged = _judged(chosen, settings, broker, ledger, max_replays).persist()  # what is counted is what is sent
    try:
        report = _counted(judged, broker, topic, allowed)
        report.dry_run = False
        sent = judged.where("fate = ''").repartition(parts, "id")
        rows = sent.select("id", "target", "key", "value", "headers", "new").mapInArrow(_Sender(ledger, job, to), _OUT)
        options = {f"kafka.{name}": str(value) for name, value in settings}
        rows.write.format("wheelsched-kafka").mode("append").options(**options, job_id=job).save()
    finally:
        judged.unpersist()
    if not is_last(broker, topic, job):
        raise Rejected(
            f"another replay of {topic} began meanwhile, which ended this one: what was sent is sent once; run it "
            "again for the rest"
        )
    return report


def _settings(kafka: Kafka) -> Settings:
    from retry_topic.spark.kafka.connector import settings_of_cluster

    problems: list[str] = []
    settings = settings_of_cluster(kafka, problems)
    if problems:
        raise ConfigError([*problems, "nothing was read"])
    return settings


def _target(to: str) -> Column:
    """Where a letter goes; null where nobody knows."""
    from pyspark.sql import functions as f

    if to == "origin":
        return f.col("topic")
    if to == "group":
        return f.concat(f.col("consumer_group"), f.lit(redelivery_topic_of("x")[1:]))
    return f.lit(to)


def _judged(chosen: DataFrame, settings: Settings, broker: KafkaBroker, ledger: str, max_replays: int) -> DataFrame:
    """The letters with what keeps them from being sent, "" for nothing."""
    from pyspark.sql import functions as f

    from retry_topic.spark.kafka.connector import batch

    fate = f.when(~f.col("ours"), "strange").when(f.col("target").isNull(), "unreadable")
    fate = fate.when(f.col("replays") >= max_replays, "guarded").otherwise("")
    broker.topology.forget(ledger)
    if not broker.topology.partitions(ledger):
        return chosen.withColumn("fate", fate)
    places = f.col("key").cast("string").alias("id")
    gone = batch(chosen.sparkSession, settings, [ledger]).select(places).distinct().withColumn("was", f.lit(True))
    return chosen.join(gone, "id", "left").withColumn("fate", f.when(f.col("was"), "before").otherwise(fate))


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Where letters may go by what their headers say: whoever can write to the dead topic writes those.

    Args:
        broker: of the cluster.
        dead: the dead topic, whose name tells the group.
        origins: topics that were named beside the group's.
    """

    broker: KafkaBroker
    dead: str
    origins: frozenset[str]

    def check(self, target: str) -> None:
        """Raise `ConfigError` for a topic that is none of the group's."""
        group = self.dead.removesuffix(dead_topic_of("x")[1:])
        if target in self.origins:
            return
        if group and group != self.dead and (target == redelivery_topic_of(group) or self.broker.reads(group, target)):
            return
        raise ConfigError(
            f"letters name {target!r} as their topic, which the group of {self.dead} does not read: nothing was "
            "replayed; select others, name a topic for them (--to), or allow it (--origin)"
        )


def _counted(judged: DataFrame, broker: KafkaBroker, topic: str, allowed: _Allowed | None) -> Replay:
    """How many there are of each fate.

    Raises:
        ConfigError: they are of another topic, or one that they are to be sent to is not there; nothing was replayed.
    """
    counts: dict[str, int] = {}
    for row in judged.groupBy("fate", "target").count().collect():
        target = row["target"]
        if row["fate"] == "" and target is not None and not broker.topology.partitions(target):
            raise ConfigError(
                f"there is no topic {target} for {row['count']:,} letters: nothing was replayed; create it, select "
                "others, or name a topic for them"
            )
        if row["fate"] == "" and target is not None and allowed is not None:
            allowed.check(target)
        counts[row["fate"]] = counts.get(row["fate"], 0) + row["count"]
    if strange := counts.get("strange"):
        raise ConfigError(f"{strange:,} letters do not lie in {topic} as it is now: nothing was replayed; read it anew")
    report = Replay(True, before=counts.pop("before", 0), replayed=counts.get("", 0))
    report.selected = sum(counts.values())
    report.guarded, report.unreadable = counts.get("guarded", 0), counts.get("unreadable", 0)
    return report


@dataclass(frozen=True, slots=True)
class _Reader:
    """Takes records of a dead topic apart.

    Args:
        topic_id: of the topic; one that is made anew has other letters at the same places.
    """

    topic_id: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        from retry_topic.spark.kafka.taking import messages_in

        for batch in batches:
            raw = {name: batch.column(name) for name in ("key", "value", "headers")}
            columns: dict[str, list[Any]] = {name: [] for name in _columns(_LETTERS) if name not in raw}
            for message in messages_in(iter([batch])):
                state, source = read(message.headers), message.source
                assert source is not None  # noqa: S101  # they are made with one
                told = {
                    "id": f"{self.topic_id}/{source.partition}/{source.offset}",
                    "at_ms": source.timestamp_ms,
                    "topic": state.original_topic,
                    "fingerprint": state.error_fingerprint,
                    "status": state.error_status,
                }
                for name, values in columns.items():
                    values.append(told[name] if name in told else getattr(state, name))
            kinds = {"attempt": "int32", "replays": "int32", "status": "int32"}
            arrays = {
                name: pyarrow.array(
                    values,
                    kinds.get(name) or ("int64" if name.endswith("_ms") else "string"),
                )
                for name, values in columns.items()
            } | raw
            yield pyarrow.RecordBatch.from_pydict({name: arrays[name] for name in _columns(_LETTERS)})


@dataclass(frozen=True, slots=True)
class _Sender:
    """Makes of each letter two records: itself, and its place for the ledger.

    Args:
        ledger: the topic of places.
        job: this run's id.
        to: see `replay_topic`.
    """

    ledger: str
    job: str
    to: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        from retry_topic.brokers.kafka.records import from_parts, to_record
        from retry_topic.message import Source

        pair = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
        kinds = [("topic", pyarrow.string()), ("key", pyarrow.binary()), ("value", pyarrow.binary())]
        schema = pyarrow.schema([*kinds, ("headers", pyarrow.list_(pyarrow.field("element", pair)))])
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for row in batch.to_pylist():
                pairs = [(header["key"], header["value"]) for header in row["headers"] or ()]
                target, value = row["target"], row["value"] if row["new"] is None else row["new"]
                message = from_parts(Source(target, 0, ""), row["key"], value, pairs)
                state = read(message.headers)
                state = replayed_state(state, state.replays + 1)
                if self.to not in ("origin", "group"):
                    state = replace(state, original_topic=target)  # or its new consumer would take it for a stray copy
                payload, headers = to_record(message.to(target, write(message.headers, state)))
                told = [{"key": name, "value": content} for name, content in headers]
                rows.append({"topic": target, "key": message.key, "value": payload, "headers": told})
                rows.append({"topic": self.ledger, "key": row["id"].encode(), "value": self.job.encode()})
            yield pyarrow.RecordBatch.from_pylist(rows, schema=schema)


def _columns(ddl: str) -> list[str]:
    return [part.split()[0] for part in ddl.split(", ")]
