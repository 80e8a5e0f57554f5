"""backfill: schedule the rows of any DataFrame, millions of them, once each however often the job is run.

Nothing is written before all of it was looked at: columns and types, ids that are missing or too long or stand twice,
dues that are missing or impossible, and whether the server has the memory. What is wrong stops the job, or, given a
place for them, goes there row by row while the rest is stored.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retry_topic.spark.faults import plain_errors
from retry_topic.spark.sizes import row_bytes
from retry_topic.spark.source.options import Place
from retry_topic.spark.source.pacing import bytes_left, check_room, rate_problem
from retry_topic.spark.source.shapes import TAKEN, check_written
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store.core.items import MAX_BODY_BYTES, MAX_DUE_MS, MAX_ID_BYTES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_UNSTEADY = re.compile(
    r"\b(row_number|monotonically_increasing_id|uuid|rand\w*|shuffle|now|current_\w+)\b|\bover\b", re.I
)


@dataclass(slots=True)
class Backfilled:
    """What was found and done."""

    dry_run: bool
    job_id: str
    rows: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    stored: int = 0
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    bytes_needed: int = 0
    bytes_free: int | None = None
    rejects: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@plain_errors
def backfill(
    rows: DataFrame,
    place: Place,
    *,
    job_id: str,
    columns: dict[str, str] | None = None,
    spread_ms: int = 0,
    rate: float | None = None,
    rejects: str | None = None,
    dry_run: bool = False,
    memory_limit: int | None = None,
    past: bool = False,
) -> Backfilled:
    """Schedule every row.

    Args:
        rows: with the columns that `format("wheelsched")` takes, or others that `columns` makes them of.
        place: the store.
        job_id: names this set of rows for ever: a run that was interrupted is finished by running it again, and one
            that was finished stores nothing when it is.
        columns: SQL expressions by column (`{"id": "concat('c', customer)", "value": "to_json(struct(*))"}`), instead
            of the columns of `rows`. The id must be the same in every run. Defaults to none.
        spread_ms: spread the dues over this time from each row's own, by a hash of the id. Defaults to 0.
        rate: instead, about so many a second from now on, none before its own due. Defaults to None: as they are due.
        rejects: folder for the rows that cannot be stored, with the reason, as Parquet. Defaults to None: one such
            row stops the job.
        dry_run: look only. Defaults to False.
        memory_limit: bytes the server may have in use afterwards. Defaults to its own limit, or what its machine has.
        past: take rows whose due has passed, which go out at once. Defaults to False: they are bad rows.

    Raises:
        ConfigError: columns or expressions are wrong.
        Rejected: rows are bad, or the memory does not suffice. Nothing was written.
        StoreError: the store cannot be reached.
    """
    from pyspark.sql import functions as f

    if spread_ms and rate is not None:
        raise ConfigError("expected spread_ms or rate, got both; nothing was written")
    if (problem := rate_problem(rate)) is not None:
        raise ConfigError([problem, "nothing was written"])
    shaped = _shaped(rows, columns or {})
    check_written({column.name: column.dataType.simpleString() for column in shaped.schema})
    if "due" in shaped.columns:
        shaped = shaped.withColumn("due_ms", f.ceil(f.unix_micros("due") / 1000).cast("bigint")).drop("due")
    if (spread_ms or rate) and "due_ms" not in shaped.columns:
        raise ConfigError("expected a column due_ms or due beside spread_ms or rate; nothing was written")
    with place.opened() as store:
        store.counts()  # every shard is there, before anything is written
        now_ms = store.now_ms()
    judged = shaped.withColumn("flaw", _flaw(shaped.columns, 0 if past else now_ms, MAX_DUE_MS - spread_ms))
    report = Backfilled(dry_run, job_id, rejects=rejects)
    _count(judged, report)
    twice = judged.where("flaw = ''").groupBy("id").count().where("count > 1").agg(f.sum(f.col("count") - 1)).first()
    if twice is not None and twice[0]:
        report.bad["the id stands twice"] = int(twice[0])
    if report.last_due_ms is not None:
        report.last_due_ms += spread_ms
    with place.opened() as store:
        report.bytes_free = bytes_left(store, memory_limit)
    if not dry_run:
        check_room(report.bytes_needed, report.bytes_free, f"{report.rows:,} rows")
    if report.bad and rejects is None:
        told = ", ".join(f"{count:,} rows: {why}" for why, count in report.bad.items())
        if not dry_run:
            raise Rejected(f"{told}: nothing was stored; drop them, or name a folder for rejects")
        return report
    if dry_run:
        return report
    if rejects is not None:
        judged.where("flaw <> ''").write.mode("overwrite").parquet(rejects)
    good = judged.where("flaw = ''").drop("flaw").dropDuplicates(["id"])
    with place.opened() as store:
        before = store.counts().happened("accepted")
        options = {"store": place.url, "namespace": place.namespace, "durability": place.durability, "job_id": job_id}
        options |= {"spread_ms": str(spread_ms), "replicas": str(place.replicas)}
        if rate is not None:
            options |= {"rate": str(rate), "rows": str(report.rows)}
        good.write.format("wheelsched").mode("append").options(**options).save()
        report.stored = store.counts().happened("accepted") - before
    return report


def _shaped(rows: DataFrame, columns: dict[str, str]) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    if strange := [name for name in columns if name not in TAKEN]:
        raise ConfigError(f"there is no column {', '.join(strange)}; expected some of {', '.join(TAKEN)}")
    if "id" in columns and _UNSTEADY.search(columns["id"]):
        raise ConfigError(
            f"the id {columns['id']!r} would be another in the next run, and every row be stored twice: nothing was "
            "written; make it of the row's own columns"
        )
    if not columns:
        return rows
    kept = [f.col(name) for name in rows.columns if name in TAKEN and name not in columns]
    try:
        shaped = rows.select(*kept, *(f.expr(text).alias(name) for name, text in columns.items()))
        _ = shaped.schema
    except PySparkException as error:
        raise ConfigError(f"an expression is wrong: {str(error).splitlines()[0]}; nothing was written") from error
    wanted = {"due_ms": "bigint"}
    return shaped.select(*(f.col(n).try_cast(wanted[n]).alias(n) if n in wanted else f.col(n) for n in shaped.columns))


def _flaw(columns: list[str], least_ms: int, greatest_ms: int) -> Column:
    """What keeps a row from being stored, "" for nothing."""
    from pyspark.sql import functions as f

    body = "value" if "value" in columns else "body"
    rules = [
        (f.col("id").isNull() | (f.col("id") == ""), "there is no id"),
        (f.octet_length("id") > MAX_ID_BYTES, f"the id has over {MAX_ID_BYTES} bytes"),
        (f.octet_length(body) > MAX_BODY_BYTES // 2, "the payload is too large"),
        (f.col(body).isNull(), f"there is no {body}"),
    ]
    if "due_ms" in columns:
        rules.append((f.col("due_ms").isNull(), "there is no due"))
        rules.append(((f.col("due_ms") < 0) | (f.col("due_ms") > greatest_ms), "the due is not between 1970 and 9999"))
        rules.append((f.col("due_ms") < least_ms, "the due has passed"))
    if "topic" in columns:
        rules.append(((f.length("topic") > 249) | f.col("topic").contains("\n"), "the topic is no name"))
    if "value" in columns:
        rules.append((f.coalesce(f.col("topic"), f.lit("")) == "", "there is no topic"))
    flaw = f.lit("")
    for wrong, why in reversed(rules):
        flaw = f.when(f.coalesce(wrong, f.lit(False)), f.lit(why)).otherwise(flaw)
    return flaw


def _count(judged: DataFrame, report: Backfilled) -> None:
    from pyspark.sql import functions as f

    dues = f.col("due_ms") if "due_ms" in judged.columns else f.lit(None).cast("bigint")
    size = f.sum(row_bytes(judged.columns))
    summed = judged.groupBy("flaw").agg(
        f.count("*").alias("rows"), size.alias("bytes"), f.min(dues).alias("first"), f.max(dues).alias("last")
    )
    for row in summed.collect():
        report.rows += row["rows"]
        if row["flaw"]:
            report.bad[row["flaw"]] = row["rows"]
        else:
            report.bytes_needed = row["bytes"]
            report.first_due_ms, report.last_due_ms = row["first"], row["last"]
