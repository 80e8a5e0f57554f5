"""slo: how late deliveries were, from the attempt history, and whether they met an objective.

Lateness is the start of a delivery minus its due time. A first delivery has no due time and does not count. Percentiles
are Spark's `percentile_approx` at an accuracy of 10,000 (a rank error of 0.01 %).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retry_topic.spark.faults import plain_errors
from retry_topic.spark.jobs.history import check_history, sound
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHARES = (0.5, 0.9, 0.99, 0.999)
_NAMES = ("p50", "p90", "p99", "p999")
_ACCURACY = 10_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
WORST = 10


@dataclass(slots=True)
class Slo:
    """The lateness report.

    Args:
        target_ms: a delivery is late when it starts more than this after its due time.
        objective: the share of deliveries that must not be late.
        deliveries: number of deliveries that had a due time.
        left_out: number of impossible rows, which were not used.
        early: number of deliveries that started before their due time.
        late: number of late deliveries.
        burn: the used share of the error budget; 1 means all of it.
        lateness_ms: percentiles and maximum of the lateness.
        topics, hours, shards: the same figures for each topic, hour and shard; at most 100 topics, those with the most
            late deliveries, the first 744 hours, and 1,024 shards.
        worst: the minutes of a topic with the most late deliveries.
    """

    target_ms: int
    objective: float
    deliveries: int = 0
    left_out: int = 0
    early: int = 0
    late: int = 0
    burn: float = 0.0
    lateness_ms: dict[str, float] = field(default_factory=dict)
    topics: list[dict[str, Any]] = field(default_factory=list)
    hours: list[dict[str, Any]] = field(default_factory=list)
    shards: list[dict[str, Any]] = field(default_factory=list)
    worst: list[dict[str, Any]] = field(default_factory=list)

    @property
    def met(self) -> bool:
        return self.burn <= 1 and not self.early

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


@plain_errors
def slo(history: DataFrame, *, target_ms: int = 1_000, objective: float = 0.999) -> Slo:
    """The lateness report of a history.

    Args:
        history: the attempts; for the columns see `retry_topic.spark.jobs.history`.
        target_ms: a delivery is late when it starts more than this after its due time. Defaults to 1,000.
        objective: the share of deliveries that must not be late. Defaults to 0.999.

    Raises:
        ConfigError: an argument is wrong, or a column is missing.
    """
    from pyspark.sql import functions as f

    problems = []
    if target_ms < 0:
        problems.append(f"expected target_ms to be 0 or more, got: {target_ms!r}")
    if not 0 < objective < 1:
        problems.append(f"expected objective to be a share between 0 and 1, got: {objective!r}")
    if problems:
        raise ConfigError(problems)
    checked = check_history(history)
    fine = sound(checked)
    lateness = f.col("started_ms") - f.col("due_ms")
    # no cache: for most histories a second scan costs less than keeping the rows
    late = checked.where(fine & f.col("due_ms").isNotNull()).withColumn("lateness", lateness)
    report = Slo(target_ms, objective, left_out=checked.where(~fine).count())
    shard = "shard" if "shard" in checked.columns else None
    hour = (f.floor(f.col("due_ms") / HOUR_MS) * HOUR_MS).cast("bigint").alias("hour_ms")
    minute = (f.floor(f.col("due_ms") / MINUTE_MS) * MINUTE_MS).cast("bigint").alias("minute_ms")
    whole = late.agg(*_measures(target_ms)).first()
    if whole is None or not whole["deliveries"]:
        return report
    flat = _row(whole.asDict())
    report.deliveries, report.early, report.late = flat["deliveries"], flat["early"], flat["late"]
    report.lateness_ms = {name: flat[name] for name in (*_NAMES, "max")}
    report.burn = round(report.late / report.deliveries / (1 - objective), 4)
    report.topics = _grouped(late, [f.col("topic")], target_ms, f.desc("late"), 100)
    report.hours = _grouped(late, [hour], target_ms, f.asc("hour_ms"), 24 * 31)
    if shard:
        report.shards = _grouped(late, [f.col("shard")], target_ms, f.asc("shard"), 1024)
    worst = _grouped(late, [f.col("topic"), minute], target_ms, f.desc("late"), WORST)
    report.worst = [row for row in worst if row["late"]]
    return report


def _measures(target_ms: int) -> list[Column]:
    from pyspark.sql import functions as f

    lateness = f.col("lateness")
    return [
        f.count("*").alias("deliveries"),
        f.sum(f.when(lateness > target_ms, 1).otherwise(0)).alias("late"),
        f.sum(f.when(lateness < 0, 1).otherwise(0)).alias("early"),
        f.percentile_approx(lateness, list(_SHARES), _ACCURACY).alias("shares"),
        f.max(lateness).alias("max"),
    ]


def _grouped(late: DataFrame, by: list[Column], target_ms: int, order: Column, limit: int) -> list[dict[str, Any]]:
    rows = late.groupBy(*by).agg(*_measures(target_ms)).orderBy(order).limit(limit).collect()
    return [_row(row.asDict()) for row in rows]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    shares = row.pop("shares") or [None] * len(_NAMES)
    return row | dict(zip(_NAMES, shares, strict=True))
