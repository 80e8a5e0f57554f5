"""dlq: groups many dead letters by fingerprint, selects them by SQL, repairs their payloads, and replays them.

A replay lets each letter wait again in its store, once. The script that moves a letter checks that the letter is still
dead. So a repeated task and a second run skip letters that were moved before. A dispatcher then releases the letter
like any other message of the store (exactly once if store and topic are on one server).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetters, Order
from retry_topic.dead_letters.loop_guard import MAX_REPLAYS
from retry_topic.message.fingerprint import fingerprint
from retry_topic.spark.faults import plain_errors
from retry_topic.spark.jobs.store import read
from retry_topic.spark.source.options import StorePlace
from retry_topic.spark.source.pacing import DueSpread, rate_problem
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_BATCH = 500
_SUMS = ("selected", "matched", "replayed", "guarded", "unreadable")


@dataclass(slots=True)
class Replay:
    """What a replay did. In a dry run: what it would do.

    Args:
        dry_run: whether the run changed nothing.
        selected: letters in the selection.
        replayed: of the selected, letters that were replayed.
        guarded: of the selected, letters that were replayed `max_replays` times before; they stay dead.
        unreadable: of the selected, letters that cannot be read or have no known target.
        gone: of the selected, letters that others replayed or deleted meanwhile.
        before: letters of a dead topic that an earlier run has sent; not part of `selected`. Always 0 when the letters
            are in a store.
        last_due_ms: latest due time of the replayed letters; None when unknown.
        samples: some letters, in a dry run.
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


def dead_letters(spark: SparkSession, place: StorePlace) -> DataFrame:
    """The dead letters of a store, in the form `letters` of `format("wheelsched")`, with one more column.

    This column, `text`, is the payload; null when the payload is not UTF-8.
    """
    from pyspark.sql import functions as f

    letters = read(spark, place, states="dead", form="letters")
    return letters.withColumn("text", f.try_validate_utf8(f.col("value").cast("string")))


def triage(letters: DataFrame) -> DataFrame:
    """Group dead letters by topic, error class and fingerprint, the largest group first.

    Columns: topic, error_class, fingerprint, letters, attempts (mean), first_ms, last_ms, sample_id, sample.

    Args:
        letters: with columns topic, error_class, error_message, at_ms and id; fingerprint and attempt are optional.
            They may come from a store, a topic or an archive.

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

    # no annotations: PySpark would read them as its own type hints and warn
    to_fingerprint = f.udf(lambda name, text: fingerprint(name or "", text or ""), "string")
    return to_fingerprint(error_class, message)


def select(letters: DataFrame, where: str | None = None, group: str | None = None) -> DataFrame:
    """Select letters by an SQL predicate, by the start of a fingerprint, or both.

    Raises:
        ConfigError: the predicate is wrong; nothing was replayed.
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
    place: StorePlace,
    *,
    repair: str | None = None,
    rate: float | None = None,
    max_replays: int = MAX_REPLAYS,
    dry_run: bool = False,
) -> Replay:
    """Let these dead letters wait again in their store. The attempt count of each letter starts at 0 again.

    Headers are not signed. If the group's services sign headers, use `DeadLetters.replay` with the secrets instead.

    Args:
        letters: a selection of `dead_letters`.
        place: the store of the letters.
        repair: SQL for the new payload, over the letter's columns (`text` is the old payload). Null keeps the old
            payload. Defaults to None: no change.
        rate: about this many letters become due per second; a hash of the id chooses the time. Defaults to None: all
            at once.
        max_replays: most replays of one message, so that a letter that always fails does not loop. Defaults to 3.
        dry_run: change nothing, only count. Defaults to False.

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
    spread = DueSpread() if rate is None else DueSpread.of_rate(letters.count(), rate, now_ms)
    # a message that dies during this run is not part of the selection
    orders = chosen.where(f.col("at_ms") <= now_ms).select("id", "new")
    columns = ", ".join(f"{name} bigint" for name in (*_SUMS, "last_due_ms"))
    done = orders.mapInArrow(_replayer(place, spread, max_replays, dry_run), columns)
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
    """These columns of the letters, and `new`: the new payload, null to keep the old one.

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
    """Up to five letters, with their new payloads if `repair` is given."""
    from pyspark.sql import functions as f

    shown = [name for name in ("id", "topic", "error_class", "text") if name in letters.columns]
    samples = letters.select(*shown, *([f.expr(repair).cast("string").alias("repaired")] if repair else []))
    return [row.asDict() for row in samples.limit(5).collect()]


def _due(spread: DueSpread, letter_id: str) -> int | None:
    return spread.due_ms(letter_id, 0) if spread.spread_ms else None


def _replayer(place: StorePlace, spread: DueSpread, max_replays: int, dry_run: bool) -> Any:
    """The function that replays the letters of one task and returns the counts."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        from retry_topic.brokers.memory import MemoryBroker

        sums = [0] * len(_SUMS)
        last: int | None = None
        with place.opened() as store:
            dead = DeadLetters(
                Connection(store, MemoryBroker())
            )  # a replay changes only the store, so no real broker is needed
            for batch in batches:
                rows = batch.to_pylist()
                for at in range(0, len(rows), _BATCH):
                    orders = [Order(row["id"], _due(spread, row["id"]), row["new"]) for row in rows[at : at + _BATCH]]
                    done = dead.replay_orders(orders, max_replays=max_replays, dry_run=dry_run)
                    counted = (len(orders), done.matched, done.replayed, done.guarded, done.unreadable)
                    sums = [one + other for one, other in zip(sums, counted, strict=True)]
                    last = max((ms for ms in (last, done.last_due_ms) if ms is not None), default=None)
        row = dict(zip(_SUMS, sums, strict=True)) | {"last_due_ms": last}
        kinds = [(name, pyarrow.int64()) for name in row]
        yield pyarrow.RecordBatch.from_pylist([row], schema=pyarrow.schema(kinds))

    return run
