"""dlq over Kafka: groups, selects and replays the dead letters of a dead topic, like those of a store.

A dead topic is a log: nobody can take a letter out of it. So the transaction that sends a letter also writes the
letter's id to `<dead topic>.replayed`. Either both records are committed or none. A run skips the letters whose ids are
in `<dead topic>.replayed`. So a second run of a selection sends nothing, and a run of a larger selection sends only the
further letters. A run after a failure sends only the letters that the failed run did not send. It does not matter
whether Spark partitions the letters in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from retry_topic.dead_letters.loop_guard import MAX_REPLAYS
from retry_topic.dead_letters.replay import replayed_state
from retry_topic.message.headers import read, write
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of
from retry_topic.spark.faults import plain_errors
from retry_topic.spark.jobs.dlq import Replay, repaired, samples_of
from retry_topic.spark.kafka.availability import retry_until_available
from retry_topic.spark.kafka.connector import Connector, Kafka, batch, read_settings
from retry_topic.spark.kafka.marks import MARKS
from retry_topic.spark.kafka.options import Settings, broker_of, check_topics
from wheel_sched.errors import ConfigError, Rejected

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from retry_topic.brokers.kafka import KafkaBroker

_KEPT = "key binary, value binary, headers array<struct<key:string,value:binary>>"
_LETTERS = (
    "id string, at_ms bigint, topic string, attempt int, replays int, first_failed_ms bigint, last_failed_ms bigint, "
    f"due_ms bigint, error_class string, error_message string, fingerprint string, status int, consumer_group string, "
    f"{_KEPT}"
)
_OUT = f"topic string, {_KEPT}"


@plain_errors
def topic_letters(spark: SparkSession, kafka: Kafka, topic: str, *, connector: Connector = "auto") -> DataFrame:
    """The dead letters of a topic up to its present end, with the columns that `triage` and `select` need.

    `id` is topic id, partition and offset. `headers` are the record's headers. `text` is the payload, null when it is
    not UTF-8. A record that this package did not write has no `topic`: it can be grouped, and sent to a topic that
    the caller names.

    Raises:
        ConfigError: there is no such topic.
        BrokerError: the cluster does not answer.
    """
    from pyspark.sql import functions as f

    settings = read_settings(kafka)
    rows = batch(spark, settings, [topic], connector)
    topic_id = retry_until_available(lambda: broker_of(settings).topic_id(topic))
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
    """Send each of these dead letters again, once, however often this function is called. Attempts count from 0 again.

    Headers are not signed.

    Args:
        letters: a selection of `topic_letters`.
        kafka: the cluster.
        topic: the dead topic of the letters.
        to: "origin", the topic where each letter first failed; "group", the topic `<group>.redelivery` of its consumer
            group; or the name of a topic. Defaults to "origin".
        origins: further topics that the headers of a letter may name. Defaults to none: only topics that the group of
            the dead topic (`<group>.dead`) reads, and its redelivery topic.
        repair: SQL for the new payload, see `replay`. Defaults to None: no change.
        max_replays: most replays of one message, counted in its headers. Defaults to 3.
        dry_run: change nothing, only count. Defaults to False.

    Raises:
        ConfigError: an argument is wrong, a topic is missing, or headers name a topic that is not allowed; nothing was
            replayed.
        Rejected: another run began meanwhile. What was sent stays sent; another run does the rest.
        BrokerError, JobFailed: what was sent stays sent; another run does the rest.
    """
    settings = read_settings(kafka)
    broker = broker_of(settings)
    check_topics(broker, (topic,))
    topic_id = retry_until_available(lambda: broker.topic_id(topic))
    by_headers = to in ("origin", "group")
    allowed = _Allowed(broker, topic, frozenset(origins)) if by_headers else None
    run = _Run(broker, settings, topic, to, max_replays, allowed)
    chosen = _with_targets(repaired(letters, repair, _columns(_LETTERS)), to, topic_id)
    report = run.count(run.judge(chosen))
    if dry_run:
        report.samples = samples_of(letters, repair)
        return report
    if report.replayed:
        report = run.send(chosen)
    report.dry_run = False
    return report


def _with_targets(letters: DataFrame, to: str, topic_id: str) -> DataFrame:
    """Add the columns `target`, the topic to send a letter to (null if unknown), and `ours`.

    `ours` says whether the letter was read from the topic with the id `topic_id`. Repeated letters are dropped.
    """
    from pyspark.sql import functions as f

    target = f.lit(to)
    if to == "origin":
        target = f.col("topic")
    elif to == "group":
        target = f.concat(f.col("consumer_group"), f.lit(redelivery_topic_of("x")[1:]))
    ours = f.col("id").startswith(f"{topic_id}/")
    return letters.withColumn("target", target).withColumn("ours", ours).dropDuplicates(["id"])


@dataclass(frozen=True, slots=True)
class _Run:
    """One replay of a dead topic.

    Args:
        broker: the cluster.
        settings: the client settings of the cluster.
        topic: the dead topic.
        to, max_replays: see `replay_topic`.
        allowed: the topics that headers may name; None when `to` names a topic.
    """

    broker: KafkaBroker
    settings: Settings
    topic: str
    to: str
    max_replays: int
    allowed: _Allowed | None

    @property
    def replayed_topic(self) -> str:
        """The topic that holds the ids of the letters that were sent."""
        return f"{self.topic}.replayed"

    def judge(self, letters: DataFrame) -> DataFrame:
        """The letters with a column `skip_reason`: why a letter is not sent; "" for a letter to send."""
        from pyspark.sql import functions as f

        reason = f.when(~f.col("ours"), "other topic").when(f.col("target").isNull(), "unreadable")
        reason = reason.when(f.col("replays") >= self.max_replays, "guarded").otherwise("")
        self.broker.topology.forget(self.replayed_topic)
        if not self.broker.topology.partitions(self.replayed_topic):
            return letters.withColumn("skip_reason", reason)
        sent = batch(letters.sparkSession, self.settings, [self.replayed_topic])
        ids = sent.select(f.col("key").cast("string").alias("id")).distinct().withColumn("sent", f.lit(True))
        return letters.join(ids, "id", "left").withColumn(
            "skip_reason", f.when(f.col("sent"), "before").otherwise(reason)
        )

    def count(self, judged: DataFrame) -> Replay:
        """Count the letters to send, and by `skip_reason` the letters that are not sent.

        Raises:
            ConfigError: a letter was read from another topic, or its target topic is absent or not allowed; nothing was
                replayed.
        """
        counts: dict[str, int] = {}
        for row in judged.groupBy("skip_reason", "target").count().collect():
            if row["skip_reason"] == "" and row["target"] is not None:
                self._check_target(row["target"], row["count"])
            counts[row["skip_reason"]] = counts.get(row["skip_reason"], 0) + row["count"]
        if others := counts.get("other topic"):
            raise ConfigError(
                f"{others:,} letters are not from the present topic {self.topic}: nothing was replayed; read the topic "
                "again"
            )
        report = Replay(True, before=counts.pop("before", 0), replayed=counts.get("", 0))
        report.selected = sum(counts.values())
        report.guarded, report.unreadable = counts.get("guarded", 0), counts.get("unreadable", 0)
        return report

    def _check_target(self, target: str, letters: int) -> None:
        if not self.broker.topology.partitions(target):
            raise ConfigError(
                f"there is no topic {target} for {letters:,} letters: nothing was replayed; create it, select other "
                "letters, or name a topic for them"
            )
        if self.allowed is not None:
            self.allowed.check(target)

    def send(self, letters: DataFrame) -> Replay:
        """End earlier runs, judge the letters again and send them.

        Raises:
            ConfigError: a letter was read from another topic, or its target topic is absent or not allowed; nothing was
                replayed.
            Rejected: another run began meanwhile.
        """
        from retry_topic.spark.kafka.runs import begin_run, is_last

        compacted = {"cleanup.policy": "compact"}
        parts = self.broker.topology.partitions(self.topic)
        self.broker.topology.create([MARKS], partitions=1, settings=compacted)
        self.broker.topology.create([self.replayed_topic], partitions=parts, settings=compacted)
        job = begin_run(self.broker, self.topic, parts)
        judged = self.judge(letters).persist()  # so that the letters counted and the letters sent are the same
        try:
            report = self.count(judged)
            chosen = judged.where("skip_reason = ''").repartition(parts, "id")
            columns = chosen.select("id", "target", "key", "value", "headers", "new")
            options = {f"kafka.{name}": str(value) for name, value in self.settings}
            rows = columns.mapInArrow(_Sender(self.replayed_topic, job, self.to), _OUT)
            rows.write.format("wheelsched-kafka").mode("append").options(**options, job_id=job).save()
        finally:
            judged.unpersist()
        if not is_last(self.broker, self.topic, job):
            raise Rejected(
                f"another replay of {self.topic} began meanwhile and ended this one: no letter was sent twice; run "
                "it again for the rest"
            )
        return report


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Checks the topics that the headers of letters name, because any writer of the dead topic can set headers.

    Args:
        broker: the cluster.
        dead: the dead topic; its name holds the group's name.
        origins: topics that the caller allows besides those of the group.
    """

    broker: KafkaBroker
    dead: str
    origins: frozenset[str]

    def check(self, target: str) -> None:
        """Raise `ConfigError` for a topic that is not allowed."""
        group = self.dead.removesuffix(dead_topic_of("x")[1:])
        if target in self.origins:
            return
        if group and group != self.dead and (target == redelivery_topic_of(group) or self.broker.reads(group, target)):
            return
        raise ConfigError(
            f"letters name {target!r} as their topic, which the group of {self.dead} does not read: nothing was "
            "replayed; select other letters, name a topic for them (--to), or allow this one (--origin)"
        )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns records of a dead topic into rows of letters.

    Args:
        topic_id: the topic's id. A topic that was deleted and created again has another id.
    """

    topic_id: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        from retry_topic.spark.kafka.intake_task import messages_in

        for page in batches:
            raw = {name: page.column(name) for name in ("key", "value", "headers")}
            columns: dict[str, list[Any]] = {name: [] for name in _columns(_LETTERS) if name not in raw}
            for message in messages_in(iter([page])):
                state, source = read(message.headers), message.source
                assert source is not None  # noqa: S101  # `messages_in` sets it
                known = {
                    "id": f"{self.topic_id}/{source.partition}/{source.offset}",
                    "at_ms": source.timestamp_ms,
                    "topic": state.original_topic,
                    "fingerprint": state.error_fingerprint,
                    "status": state.error_status,
                }
                for name, values in columns.items():
                    values.append(known[name] if name in known else getattr(state, name))
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
    """Makes two records from each letter: the letter itself, and its id for the topic of replayed letters.

    Args:
        replayed_topic: the topic of the ids.
        job: id of this run.
        to: see `replay_topic`.
    """

    replayed_topic: str
    job: str
    to: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        from retry_topic.brokers.kafka.records import from_parts, to_record
        from retry_topic.message import Source

        pair = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
        kinds = [("topic", pyarrow.string()), ("key", pyarrow.binary()), ("value", pyarrow.binary())]
        schema = pyarrow.schema([*kinds, ("headers", pyarrow.list_(pyarrow.field("element", pair)))])
        for page in batches:
            rows: list[dict[str, Any]] = []
            for row in page.to_pylist():
                pairs = [(header["key"], header["value"]) for header in row["headers"] or ()]
                target, value = row["target"], row["value"] if row["new"] is None else row["new"]
                message = from_parts(Source(target, 0, ""), row["key"], value, pairs)
                state = read(message.headers)
                state = replayed_state(state, state.replays + 1)
                if self.to not in ("origin", "group"):
                    state = replace(state, original_topic=target)  # a consumer drops a letter of another original topic
                payload, headers = to_record(message.to(target, write(message.headers, state)))
                out = [{"key": name, "value": content} for name, content in headers]
                rows.append({"topic": target, "key": message.key, "value": payload, "headers": out})
                rows.append({"topic": self.replayed_topic, "key": row["id"].encode(), "value": self.job.encode()})
            yield pyarrow.RecordBatch.from_pylist(rows, schema=schema)


def _columns(ddl: str) -> list[str]:
    return [part.split()[0] for part in ddl.split(", ")]
