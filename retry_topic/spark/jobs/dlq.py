"""dlq: dead letters in bulk: triage by fingerprint, select by SQL, repair by an expression, replay.

A replay lets letters wait again in the store they lie in, each once: in the script that moves it, a letter is dead or
it is not, so a task that is repeated, and a second run of the same selection, pass over what has gone. From then on it
travels as any message of the store (exactly once where store and topic share a server).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetters, Order
from retry_topic.loop_guard import MAX_REPLAYS
from retry_topic.message.fingerprint import fingerprint
from retry_topic.spark.faults import plain_errors
from retry_topic.spark.jobs.store import read
from retry_topic.spark.source.options import Place
from retry_topic.spark.source.pacing import Pace, rate_problem
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_BATCH = 500


@dataclass(slots=True)
class Replay:
    """What was replayed, or would be.

    Args:
        dry_run: nothing was changed.
        selected: letters that the selection holds now.
        replayed: of them.
        guarded: held back by the loop guard.
        unreadable: that nobody knows where to send.
        gone: that somebody else replayed or deleted meanwhile.
        before: of a topic, where they stay: letters of the selection that an earlier run has sent.
        last_due_ms: when the last one goes out, where that is known.
        samples: of a dry run.
    """

    dry_run: bool
    selected: int = 0
    replayed: int = 0
    guarded: int = 0
    unreadable: int = 0
    gone: int = 0
    before: int = 0
    last_due_ms: int | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def dead_letters(spark: SparkSession, place: Place) -> DataFrame:
    """The dead letters of a store, taken apart (form `letters`); `text` is the payload as text where it is text."""
    from pyspark.sql import functions as f

    letters = read(spark, place, states="dead", form="letters")
    return letters.withColumn("text", f.try_validate_utf8(f.col("value").cast("string")))


def triage(letters: DataFrame) -> DataFrame:
    """Dead letters by topic, error class and fingerprint, the largest group first.

    Columns: topic, error_class, fingerprint, letters, attempts (mean), first_ms, last_ms, sample_id, sample.

    Args:
        letters: columns topic, error_class, error_message, at_ms, id; also fingerprint and attempt when there are
            any. An archive will do as well as a store.

    Raises:
        ConfigError: a column is missing.
    """
    from pyspark.sql import functions as f

    if missing := {"id", "topic", "error_class", "error_message", "at_ms"} - set(letters.columns):
        raise ConfigError(f"expected columns {', '.join(sorted(missing))}, got: {', '.join(letters.columns)}")
    if "fingerprint" not in letters.columns:
        letters = letters.withColumn("fingerprint", _fingerprints(f.col("error_class"), f.col("error_message")))
    attempts = f.avg("attempt") if "attempt" in letters.columns else f.lit(None).cast("double")
    return (
        letters.groupBy("topic", "error_class", "fingerprint")
        .agg(
            f.count("*").alias("letters"),
            f.round(attempts, 1).alias("attempts"),
            f.min("at_ms").alias("first_ms"),
            f.max("at_ms").alias("last_ms"),
            f.max_by("id", "at_ms").alias("sample_id"),
            f.substring(f.max_by("error_message", "at_ms"), 1, 200).alias("sample"),
        )
        .orderBy(f.desc("letters"), "topic", "fingerprint")
    )


def _fingerprints(error_class: Column, message: Column) -> Column:
    from pyspark.sql import functions as f

    # without annotations: PySpark takes those for hints of its own kinds of functions, and warns about others
    of = f.udf(lambda name, text: fingerprint(name or "", text or ""), "string")
    return of(error_class, message)


def select(letters: DataFrame, where: str | None = None, group: str | None = None) -> DataFrame:
    """The letters that a predicate of SQL or (the start of) a fingerprint means.

    Raises:
        ConfigError: the predicate is wrong.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    if group is not None:
        letters = letters.where(f.col("fingerprint").startswith(group))
    if where is None:
        return letters
    try:
        chosen = letters.where(where)
        _ = chosen.schema
    except PySparkException as error:
        raise ConfigError(f"the predicate is wrong: {str(error).splitlines()[0]}; nothing was replayed") from error
    return chosen


@plain_errors
def replay(
    letters: DataFrame,
    place: Place,
    *,
    repair: str | None = None,
    rate: float | None = None,
    max_replays: int = MAX_REPLAYS,
    dry_run: bool = False,
) -> Replay:
    """Let these dead letters be tried again; their attempts start anew.

    Args:
        letters: a selection of `dead_letters`.
        place: the store they lie in.
        repair: SQL for the new payload, over the letter's columns (`text` is the old one): a row for which it is null
            keeps the payload it has. Defaults to None: none is changed.
        rate: about so many a second, spread by a hash of the id. Defaults to None: all at once.
        max_replays: the loop guard, for each message. Defaults to 3.
        dry_run: change nothing, count. Defaults to False.

    Raises:
        ConfigError: an argument is wrong; nothing was replayed.
        StoreError: the store could not be reached; a second run does the rest.
    """
    from pyspark.sql import functions as f

    if (problem := rate_problem(rate)) is not None:
        raise ConfigError([problem, "nothing was replayed"])
    report = Replay(dry_run)
    chosen = repaired(letters, repair, ["id", "at_ms"])
    with place.opened() as store:
        now_ms = store.now_ms()
    pace = Pace() if rate is None else Pace.of_rate(letters.count(), rate, now_ms)
    # what dies while this runs is not chosen by it
    orders = chosen.where(f.col("at_ms") <= now_ms).select("id", "new")
    told = "selected bigint, matched bigint, replayed bigint, guarded bigint, unreadable bigint, last_due_ms bigint"
    done = orders.mapInArrow(_replayer(place, pace, max_replays, dry_run), told)
    total = done.agg(*(f.sum(n).alias(n) for n in done.columns[:-1]), f.max("last_due_ms").alias("last")).first()
    if total is not None and total["selected"]:
        report.selected, report.replayed = total["selected"], total["replayed"]
        report.guarded, report.unreadable = total["guarded"], total["unreadable"]
        report.gone = total["selected"] - total["matched"]
        report.last_due_ms = total["last"]
    if dry_run:
        report.samples = samples_of(letters, repair)
    return report


def repaired(letters: DataFrame, repair: str | None, columns: list[str]) -> DataFrame:
    """These columns of the letters, and `new`: the payload from now on, null for the one it has.

    Raises:
        ConfigError: the repair is wrong; nothing was replayed.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    try:
        value = f.lit(None).cast("binary") if repair is None else f.expr(repair).cast("binary")
        chosen = letters.select(*columns, value.alias("new"))
        _ = chosen.schema
    except PySparkException as error:
        raise ConfigError(f"the repair is wrong: {str(error).splitlines()[0]}; nothing was replayed") from error
    return chosen


def samples_of(letters: DataFrame, repair: str | None) -> list[dict[str, Any]]:
    """Five letters, and what their payloads would be."""
    from pyspark.sql import functions as f

    shown = [name for name in ("id", "topic", "error_class", "text") if name in letters.columns]
    samples = letters.select(*shown, *([f.expr(repair).cast("string").alias("repaired")] if repair else []))
    return [row.asDict() for row in samples.limit(5).collect()]


def _due(pace: Pace, letter_id: str) -> int | None:
    return pace.due_ms(letter_id, 0) if pace.spread_ms else None


def _replayer(place: Place, pace: Pace, max_replays: int, dry_run: bool) -> Any:
    """What a task does with its part of the orders."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        from retry_topic.brokers.memory import MemoryBroker

        sums = [0, 0, 0, 0, 0]
        last: int | None = None
        with place.opened() as store:
            dead = DeadLetters(Connection(store, MemoryBroker()))  # a replay goes through the store, to no topic
            for batch in batches:
                rows = batch.to_pylist()
                for at in range(0, len(rows), _BATCH):
                    orders = [Order(row["id"], _due(pace, row["id"]), row["new"]) for row in rows[at : at + _BATCH]]
                    done = dead.replay_orders(orders, max_replays=max_replays, dry_run=dry_run)
                    counted = (len(orders), done.matched, done.replayed, done.guarded, done.unreadable)
                    sums = [one + other for one, other in zip(sums, counted, strict=True)]
                    last = max((ms for ms in (last, done.last_due_ms) if ms is not None), default=None)
        yield pyarrow.RecordBatch.from_pylist(
            [
                dict(
                    zip(("selected", "matched", "replayed", "guarded", "unreadable"), sums, strict=True),
                    last_due_ms=last,
                )
            ],
            schema=pyarrow.schema(
                [
                    (name, pyarrow.int64())
                    for name in ("selected", "matched", "replayed", "guarded", "unreadable", "last_due_ms")
                ]
            ),
        )

    return run
