"""backfill: schedules the rows of any DataFrame, millions of them. Each row is stored once, however often the job runs.

The job checks all rows before it writes one: columns and types; missing, too long or repeated ids; missing or
impossible due times; and the server's memory. Without a folder for rejects, bad rows stop the job. With such a folder,
the job writes the bad rows there and stores the other rows. Of rows with the same id it stores one, and writes the
others nowhere.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retry_topic.spark.faults import plain_errors
from retry_topic.spark.sizes import row_bytes
from retry_topic.spark.source.options import StorePlace
from retry_topic.spark.source.pacing import bytes_left, check_room, rate_problem
from retry_topic.spark.source.schemas import TAKEN, check_written
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store.core.items import MAX_BODY_BYTES, MAX_DUE_MS, MAX_ID_BYTES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_UNSTEADY = re.compile(
    r"\b(row_number|monotonically_increasing_id|uuid|rand\w*|shuffle|now|current_\w+)\b|\bover\b", re.I
)


@dataclass(slots=True)
class Backfilled:
    """What the job found and stored.

    Args:
        dry_run: whether the rows were only checked.
        job_id: the name of the set of rows.
        rows: number of rows.
        bad: number of rows that cannot be stored, by reason.
        stored: rows that this run stored. It includes what others stored in the namespace meanwhile.
        first_due_ms, last_due_ms: earliest and latest due time of the good rows; None when no good row has one.
        bytes_needed: about how much server memory the good rows need.
        bytes_free: server memory that is free; None when the server does not say.
        rejects: the folder for the bad rows.
    """

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
    place: StorePlace,
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
    """Schedule every good row. After an interrupted run, another run stores the rest.

    After a complete run, the same `job_id` stores nothing more.

    Args:
        rows: a DataFrame with the columns that `format("wheelsched")` takes, or with any columns that the expressions
            of `columns` use.
        place: the store.
        job_id: the name of this set of rows. Never use it for other rows.
        columns: SQL expressions by column (`{"id": "concat('c', customer)", "value": "to_json(struct(*))"}`). They
            replace columns of `rows` with the same name. The id must be the same in every run. Defaults to none.
        spread_ms: delay each row's due time by up to this; a hash of the id chooses the delay. Defaults to 0.
        rate: instead of `spread_ms`: about this many rows become due per second from now on, none before its own due
            time. Defaults to None.
        rejects: folder for the bad rows, with the reason, as Parquet. Of rows with the same id one is stored, and the
            others are not written there. Defaults to None: a bad row or a repeated id stops the job.
        dry_run: only check the rows. Defaults to False.
        memory_limit: how many bytes the server may use after the job. Defaults to the server's own limit, or to the
            memory of its machine.
        past: also store rows whose due time has passed; they are due at once. Defaults to False: they are bad rows.

    Raises:
        ConfigError: columns, expressions or arguments are wrong; nothing was stored.
        Rejected: rows are bad, or the memory does not suffice. Nothing was stored if the check before the write found
            it.
        StoreError, JobFailed: what was stored stays; another run stores the rest.
    """
    _check_arguments(spread_ms, rate)
    shaped = _with_due_ms(_shaped(rows, columns or {}), needs_due=bool(spread_ms or rate))
    with place.opened() as store:
        store.counts()  # fails before anything is written when a shard is missing
        now_ms = store.now_ms()
    judged = shaped.withColumn("flaw", _flaw(shaped.columns, 0 if past else now_ms, MAX_DUE_MS - spread_ms))
    report = Backfilled(dry_run, job_id, rejects=rejects)
    _count(judged, report, spread_ms)
    with place.opened() as store:
        report.bytes_free = bytes_left(store, memory_limit)
    if dry_run:
        return report
    check_room(report.bytes_needed, report.bytes_free, f"{report.rows:,} rows")
    _check_rows(report)
    _write(judged, place, report, spread_ms, rate)
    return report


def _check_arguments(spread_ms: int, rate: float | None) -> None:
    if spread_ms and rate is not None:
        raise ConfigError("expected spread_ms or rate, got both; nothing was written")
    if (problem := rate_problem(rate)) is not None:
        raise ConfigError([problem, "nothing was written"])


def _with_due_ms(shaped: DataFrame, *, needs_due: bool) -> DataFrame:
    """Check the columns and turn `due` into `due_ms`, rounded up."""
    from pyspark.sql import functions as f

    check_written({column.name: column.dataType.simpleString() for column in shaped.schema})
    if "due" in shaped.columns:
        shaped = shaped.withColumn("due_ms", f.ceil(f.unix_micros("due") / 1000).cast("bigint")).drop("due")
    if needs_due and "due_ms" not in shaped.columns:
        raise ConfigError("expected a column due_ms or due beside spread_ms or rate; nothing was written")
    return shaped


def _check_rows(report: Backfilled) -> None:
    """Raise `Rejected` if rows are bad and the caller gave no folder for rejects."""
    if report.bad and report.rejects is None:
        problems = ", ".join(f"{count:,} rows: {why}" for why, count in report.bad.items())
        raise Rejected(f"{problems}: nothing was stored; drop these rows, or name a folder for rejects")


def _write(judged: DataFrame, place: StorePlace, report: Backfilled, spread_ms: int, rate: float | None) -> None:
    """Write bad rows to the folder for rejects and good rows to the store; of rows with the same id only one."""
    if report.rejects is not None:
        judged.where("flaw <> ''").write.mode("overwrite").parquet(report.rejects)
    good = judged.where("flaw = ''").drop("flaw").dropDuplicates(["id"])
    options = {"store": place.url, "namespace": place.namespace, "durability": place.durability}
    options |= {"job_id": report.job_id, "spread_ms": str(spread_ms), "replicas": str(place.replicas)}
    if rate is not None:
        options |= {"rate": str(rate), "rows": str(report.rows)}
    with place.opened() as store:
        before = store.counts().happened("accepted")
        good.write.format("wheelsched").mode("append").options(**options).save()
        report.stored = store.counts().happened("accepted") - before


def _shaped(rows: DataFrame, columns: dict[str, str]) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    if strange := [name for name in columns if name not in TAKEN]:
        raise ConfigError(f"there is no column {', '.join(strange)}; expected some of {', '.join(TAKEN)}")
    if "id" in columns and _UNSTEADY.search(columns["id"]):
        raise ConfigError(
            f"the id {columns['id']!r} would change in the next run, so every row would be stored twice: nothing was "
            "written; build the id from the row's own columns"
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
    """A column with the reason why a row cannot be stored; "" if it can."""
    from pyspark.sql import functions as f

    body = "value" if "value" in columns else "body"
    rules = [
        (f.col("id").isNull() | (f.col("id") == ""), "there is no id"),
        (f.octet_length("id") > MAX_ID_BYTES, f"the id has over {MAX_ID_BYTES} bytes"),
        (f.octet_length(body) > MAX_BODY_BYTES // 2, "the payload is too large"),
        (f.col(body).isNull(), f"there is no {body}"),
    ]
    if "due_ms" in columns:
        rules.append((f.col("due_ms").isNull(), "there is no due time"))
        rules.append(
            ((f.col("due_ms") < 0) | (f.col("due_ms") > greatest_ms), "the due time is not between 1970 and 9999")
        )
        rules.append((f.col("due_ms") < least_ms, "the due time has passed"))
    if "topic" in columns:
        rules.append(((f.length("topic") > 249) | f.col("topic").contains("\n"), "the topic is not a valid name"))
    if "value" in columns:
        rules.append((f.coalesce(f.col("topic"), f.lit("")) == "", "there is no topic"))
    flaw = f.lit("")
    for wrong, why in reversed(rules):
        flaw = f.when(f.coalesce(wrong, f.lit(False)), f.lit(why)).otherwise(flaw)
    return flaw


def _count(judged: DataFrame, report: Backfilled, spread_ms: int) -> None:
    """Add to the report: the rows, the bad rows by reason, and the bytes and due times of the good rows."""
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
    if report.last_due_ms is not None:
        report.last_due_ms += spread_ms
    repeated = judged.where("flaw = ''").groupBy("id").count().where("count > 1").agg(f.sum(f.col("count") - 1)).first()
    if repeated is not None and repeated[0]:
        report.bad["the id is not unique"] = int(repeated[0])
