"""capacity: proposes tick, wheel size and shards for a load by running the timing wheel on a sample of it.

The input is a history of arrivals (`created_ms`, `due_ms`) or the messages that wait in a store now. The job does not
model the wheel: it runs each candidate wheel on the sample and reads the counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from retry_topic.spark.faults import plain_errors
from retry_topic.spark.jobs.history import check_columns
from retry_topic.spark.jobs.store import read
from retry_topic.spark.source.options import StorePlace
from wheel_sched.errors import ConfigError
from wheel_sched.wheel import TimingWheel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ARRIVALS = MappingProxyType({"id": "string", "created_ms": "bigint", "due_ms": "bigint"})
TICKS_MS = (1, 10, 100)
SIZES = (64, 256, 1024, 4096)
SHARD_PER_S = 20_000  # messages a second that one shard can publish, with server time left for other calls
BYTES_A_MESSAGE = 200  # without the body


@dataclass(slots=True)
class WheelRun:
    """What one candidate wheel did with the sample.

    Args:
        tick_ms: tick of the wheel. The wheel makes a message late by less than one tick.
        wheel_size: number of slots in a level.
        levels: number of levels that the wheel made.
        most_pending: most entries in the wheel at once.
        occupancy: most entries at once in each level, lowest level first.
        fullest: most entries that one bucket returned at once.
        cascades: how often an entry moved to a lower level.
        wakeups: how often the wheel returned entries.
    """

    tick_ms: int
    wheel_size: int
    levels: int
    most_pending: int
    occupancy: list[int]
    fullest: int
    cascades: int
    wakeups: int


@dataclass(slots=True)
class Capacity:
    """The measured load, the candidate wheels and the proposal.

    Args:
        messages: number of messages of the load.
        sampled: number of messages that each candidate wheel ran.
        delay_ms: p50, p90, p99 and maximum of the time from a message's creation to its due time.
        peak_due_per_s: most messages that become due in one second.
        peak_at_ms: when this second begins; None without messages.
        shard_skew: messages of the fullest shard, divided by the mean of all shards.
        memory_bytes: about how much server memory the messages need.
        candidates: what each candidate wheel did.
        suggested: the proposed tick, wheel size, levels, shards and memory.
    """

    messages: int = 0
    sampled: int = 0
    delay_ms: dict[str, int] = field(default_factory=dict)
    peak_due_per_s: int = 0
    peak_at_ms: int | None = None
    shard_skew: float = 1.0
    memory_bytes: int = 0
    candidates: list[WheelRun] = field(default_factory=list)
    suggested: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@plain_errors
def capacity(
    arrivals: DataFrame,
    *,
    shards: int = 1,
    precision_ms: int = 1,
    sample: int = 50_000,
    body_bytes: int = 200,
) -> Capacity:
    """Measure a load and propose a timing wheel, shards and memory for it.

    Args:
        arrivals: one row for each message of the load, with the columns id, created_ms and due_ms.
        shards: number of shards for which the report says how unevenly they are loaded. Defaults to 1.
        precision_ms: the coarsest acceptable tick. Defaults to 1.
        sample: each candidate wheel runs this many messages, those that were created first. Defaults to 50,000.
        body_bytes: mean size of a body. Defaults to 200.

    Raises:
        ConfigError: an argument is wrong, or a column is missing.
    """
    from pyspark.sql import functions as f

    if shards < 1 or precision_ms < 1 or sample < 1:
        raise ConfigError(
            f"expected shards, precision_ms and sample to be at least 1, got: {shards}, {precision_ms}, {sample}"
        )
    found = check_columns(arrivals, ARRIVALS).where("id is not null and created_ms >= 0 and due_ms >= 0")
    delay = f.greatest(f.lit(0), f.col("due_ms") - f.col("created_ms"))
    whole = found.agg(
        f.count("*").alias("n"), f.percentile_approx(delay, [0.5, 0.9, 0.99, 1.0], 10_000).alias("d")
    ).first()
    report = Capacity()
    if whole is None or not whole["n"]:
        return report
    report.messages = whole["n"]
    report.delay_ms = dict(zip(("p50", "p90", "p99", "max"), map(int, whole["d"]), strict=True))
    per_second = found.groupBy((f.floor(f.col("due_ms") / 1000) * 1000).cast("bigint").alias("s")).count()
    peak = per_second.orderBy(f.desc("count"), "s").first()
    if peak is not None:
        report.peak_due_per_s, report.peak_at_ms = peak["count"], peak["s"]
    # the store chooses the shard of an id in the same way
    per_shard = found.groupBy(f.pmod(f.crc32(f.encode("id", "UTF-8")), f.lit(shards)).alias("s")).count()
    most = per_shard.agg(f.max("count")).first()
    report.shard_skew = round((most[0] if most else 0) * shards / report.messages, 3)
    report.memory_bytes = report.messages * (BYTES_A_MESSAGE + body_bytes)
    pairs = [(r["created_ms"], r["due_ms"]) for r in found.orderBy("created_ms", "id").limit(sample).collect()]
    report.sampled = len(pairs)
    report.candidates = _run(found.sparkSession, pairs)
    report.suggested = _suggest(report, precision_ms)
    return report


def waiting(spark: SparkSession, place: StorePlace) -> DataFrame:
    """The messages that wait in a store, as arrivals for `capacity`. Each one counts as created now."""
    from pyspark.sql import functions as f

    with place.opened() as store:
        now_ms = store.now_ms()
    seen = read(spark, place, states="due").select("id", "at_ms")
    return seen.select("id", f.lit(now_ms).cast("bigint").alias("created_ms"), f.col("at_ms").alias("due_ms"))


def _run(spark: SparkSession, pairs: list[tuple[int, int]]) -> list[WheelRun]:
    """Run each candidate wheel on the pairs (created, due) in its own Spark task."""
    wheels = [(tick, size) for tick in TICKS_MS for size in SIZES]

    def simulated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            rows = [asdict(simulate(row["tick_ms"], row["wheel_size"], pairs)) for row in batch.to_pylist()]
            yield pyarrow.RecordBatch.from_pylist(rows)

    wanted = spark.createDataFrame(wheels, "tick_ms bigint, wheel_size bigint").repartition(len(wheels))
    columns = (
        "tick_ms bigint, wheel_size bigint, levels bigint, most_pending bigint, occupancy array<bigint>, "
        "fullest bigint, cascades bigint, wakeups bigint"
    )
    rows = wanted.mapInArrow(simulated, columns).orderBy("tick_ms", "wheel_size").collect()
    return [WheelRun(**row.asDict()) for row in rows]


def simulate(tick_ms: int, wheel_size: int, pairs: list[tuple[int, int]]) -> WheelRun:
    """Run a wheel on pairs (created, due) in ms, ordered by creation, and read its counters."""
    wheel: TimingWheel[None] = TimingWheel(pairs[0][0] if pairs else 0, tick_ms=tick_ms, wheel_size=wheel_size)
    occupancy: list[int] = []
    most = fullest = 0
    for number, (created_ms, due_ms) in enumerate(pairs):
        fullest = max(fullest, _advance(wheel, created_ms))
        wheel.schedule(None, due_ms)
        most = max(most, len(wheel))
        if number % 256 == 0:
            occupancy = _highest(occupancy, wheel.counters.levels)
    occupancy = _highest(occupancy, wheel.counters.levels)
    while (armed := wheel.next_expiry()) is not None:
        fullest = max(fullest, len(wheel.advance(armed)))
    counters = wheel.counters
    levels = max(len(occupancy), len(counters.levels))
    cascades, wakeups = counters.cascades, counters.productive_wakeups
    return WheelRun(tick_ms, wheel_size, levels, most, occupancy, fullest, cascades, wakeups)


def _advance(wheel: TimingWheel[None], now_ms: int) -> int:
    """Advance the wheel up to `now_ms`, one deadline at a time. Returns the greatest number of entries in one step."""
    fullest = 0
    while (armed := wheel.next_expiry()) is not None and armed <= now_ms:
        fullest = max(fullest, len(wheel.advance(armed)))
    if wheel.now_ms < now_ms:
        wheel.advance(now_ms)
    return fullest


def _highest(one: list[int], other: tuple[int, ...]) -> list[int]:
    size = max(len(one), len(other))
    padded = [*one, *[0] * (size - len(one))], [*other, *[0] * (size - len(other))]
    return [max(a, b) for a, b in zip(*padded, strict=True)]


def _suggest(report: Capacity, precision_ms: int) -> dict[str, Any]:
    fitting = [c for c in report.candidates if c.tick_ms <= precision_ms] or report.candidates
    # a cascade and a wake-up each cost about as much as one schedule call
    best = min(fitting, key=lambda c: (c.cascades + c.wakeups, c.wheel_size))
    return {
        "tick_ms": best.tick_ms,
        "wheel_size": best.wheel_size,
        "levels": best.levels,
        "shards": max(1, -(-report.peak_due_per_s // SHARD_PER_S)),
        "memory_bytes": int(report.memory_bytes * 1.5),  # reserve for the server's copy-on-write and for growth
    }
