"""`python -m benchmarks spark`: Spark's data source against a plain loop, and the Spark jobs on a million rows.

The plain loop runs in one Python process; it reads the same Parquet files as the stream writer and makes the same calls
on the store. `writer_vs_plain` is the rate of the Arrow stream writer divided by the rate of that loop. The time of the
writer is the time that Spark's progress reports for the sink. The reader reads a full store on another server.
`reader_vs_plain_write` is its rate divided by the rate of the plain loop. The whole query counts, from planning to the
last row; `reader_start_s` is the time of a query that returns no row. The start of the Spark session does not count.

`backtest_vs_bare`, `slo_vs_bare` and `dlq_vs_bare` divide the time of a job by that of a bare Spark query in the same
round. The query reads the same Parquet files, groups the rows, and counts them: attempts by topic, error class and
outcome, dead letters by topic, error class and fingerprint. People who run these jobs have Spark, and would write such
a query first. The ratio says how much more the job costs. A loop in Python would be the wrong baseline. The loop has no
fixed cost and Spark has one, so the ratio would depend on the number of rows. All jobs and queries run once before the
rounds, because the first run also compiles.

Spark is not faster on one machine: the workers, the JVM and the server share its processors.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure
from benchmarks.measured import Measured
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, over_rounds, ratios
from benchmarks.server import NAMESPACE, BenchServer, bench_server, surroundings
from wheel_sched.store import Fence, WriterFences, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JOBS = {"backtest": "history", "slo": "history", "dlq": "letters"}  # each job, and the rows that it reads


def _vs_bare(job: str, meaning: str, at_most: float) -> Figure:
    """Make the figure that divides the time of a job by that of the bare query over the same rows."""
    return Figure(f"{job}_vs_bare", "x", meaning, at_most=at_most, baseline=f"baseline.{_JOBS[job]}_s")


FIGURES = (
    Figure(
        "writer_vs_plain",
        "x",
        "rate of the stream writer divided by that of a plain loop",
        at_least=0.9,
        baseline="baseline.plain_rows_per_s",
    ),
    Figure(
        "reader_vs_plain_write",
        "x",
        "rate of the reader divided by that of the plain write loop",
        at_least=2.5,
        baseline="baseline.plain_rows_per_s",
    ),
    _vs_bare("backtest", "backtest of a history, divided by a bare query that groups and counts it", 25),
    _vs_bare("slo", "lateness report of the same history, divided by the same bare query", 20),
    _vs_bare("dlq", "triage of as many dead letters, divided by a bare query that groups and counts them", 8),
    Figure("backtest_s", "s", "backtest of the history of attempts"),
    Figure("slo_s", "s", "lateness report of the same history"),
    Figure("dlq_s", "s", "triage of as many dead letters, from Parquet"),
    Figure("writer_rows_per_s", "rows/s", "the stream writer"),
    Figure("reader_rows_per_s", "rows/s", "the reader, every column"),
    Figure("baseline.plain_rows_per_s", "rows/s", "baseline: the plain write loop"),
    Figure("baseline.history_s", "s", "baseline: a bare query that groups and counts the history"),
    Figure("baseline.letters_s", "s", "baseline: a bare query that groups and counts the dead letters"),
)
_SHARDS = 8
_PAYLOAD = "x" * 150


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        rounds: rounds that measure rates. Defaults to 5.
        rows: rows written in a round. Defaults to 200,000.
        stored: rows read in a round. Defaults to 1 M.
        attempts: number of dead letters, and about the number of attempts in the history. Defaults to 1 M.
        job_rounds: rounds that measure the jobs. Defaults to 3.
    """

    rounds: int = 5
    rows: int = 200_000
    stored: int = 1_000_000
    attempts: int = 1_000_000
    job_rounds: int = 3


FULL = Sizes()
QUICK = Sizes(rounds=3, rows=60_000, stored=500_000, attempts=200_000)


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    written, read = Measured(sizes.rounds, sizes.rows, "rows"), Measured(sizes.rounds, sizes.stored, "rows")
    jobs = Measured(sizes.job_rounds, sizes.attempts, "rows")
    timed = (f"{name}_{what}" for name in _JOBS for what in ("vs_bare", "s"))
    return {
        **dict.fromkeys(("writer_vs_plain", "writer_rows_per_s", "baseline.plain_rows_per_s"), written),
        **dict.fromkeys(("reader_vs_plain_write", "reader_rows_per_s"), read),
        **dict.fromkeys((*timed, "baseline.history_s", "baseline.letters_s"), jobs),
    }


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    narration = Narration(3 * sizes.rounds + 5 * sizes.job_rounds + 2)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wheel-sched-bench-")))
        server, full = stack.enter_context(bench_server()), stack.enter_context(bench_server())
        narration.step("starting Spark")
        spark = stack.enter_context(session(folder))
        files = write_rows(spark, folder / "rows", sizes.rows)
        stream_rate(spark, server, files, sizes.rows, folder)  # warms up the workers and the JIT
        plain_rate(full, write_rows(spark, folder / "stored", sizes.stored), sizes.stored)
        read_rate(spark, full, sizes.stored)
        runs = {
            "plain": partial(plain_rate, server, files, sizes.rows),
            "stream": partial(stream_rate, spark, server, files, sizes.rows, folder),
            "read": partial(read_rate, spark, full, sizes.stored),
        }
        rates = interleaved(sizes.rounds, runs, narration)
        start_s = read_seconds(spark, full, "at_ms < 0")
        narration.step(f"a history of {sizes.attempts:,} attempts")
        seconds = job_seconds(spark, folder, sizes, narration)
        around = surroundings(server, sizes.rounds)
    narration.close()
    spread = {
        "writer_vs_plain": over_rounds(ratios(rates["stream"], rates["plain"])),
        "reader_vs_plain_write": over_rounds(ratios(rates["read"], rates["plain"])),
        **{f"{job}_vs_bare": over_rounds(ratios(seconds[job], seconds[rows])) for job, rows in _JOBS.items()},
    }
    return {
        **{name: found["median"] for name, found in spread.items()},
        "spread": spread,
        **{f"{job}_s": round(median(seconds[job]), 2) for job in _JOBS},
        "writer_rows_per_s": round(median(rates["stream"])),
        "reader_rows_per_s": round(median(rates["read"])),
        "reader_start_s": round(start_s, 2),
        "rows": sizes.rows,
        "stored": sizes.stored,
        "attempts": sizes.attempts,
        **around,
        "baseline": {
            "plain_rows_per_s": round(median(rates["plain"])),
            **{f"{rows}_s": round(median(seconds[rows]), 3) for rows in dict.fromkeys(_JOBS.values())},
        },
    }


@contextlib.contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """Yield a local Spark session on two cores, which ends with the `with` block."""
    from retry_topic.spark import spark_session

    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark = spark_session("local[2]", settings={"spark.local.dir": str(folder), "spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def write_rows(spark: SparkSession, folder: Path, count: int) -> Path:
    """Write messages that are due in the year 2096 into two Parquet files."""
    rows = spark.range(0, count, 1, 2).selectExpr(
        "concat('message-', id) id", "4000000000000 + id due_ms", "'orders' topic", f"'{_PAYLOAD}' value"
    )
    rows.write.parquet(str(folder))
    return folder


def emptied(server: BenchServer) -> None:
    server.client.flushall()
    open_store(server.url, namespace=NAMESPACE, shards=_SHARDS).close()


def plain_rate(server: BenchServer, files: Path, count: int) -> float:
    """How many rows per second a plain loop in one process stores.

    The loop makes the same calls on the store as the stream writer, without Spark.
    """
    import pyarrow.parquet as parquet

    from retry_topic.spark.source.writing import items_of

    emptied(server)
    begun = time.perf_counter()
    stored = 0
    with open_store(server.url, namespace=NAMESPACE, shards=_SHARDS) as store:
        fence = Fence("plain")
        for file in sorted(files.glob("*.parquet")):
            for batch in parquet.ParquetFile(file).iter_batches(4_000):
                stored += WriterFences(store).schedule(items_of(batch), fence).accepted
        WriterFences(store).close_epoch(fence)
    took_s = time.perf_counter() - begun
    assert stored == count, f"{stored} of {count} were stored"
    return count / took_s


def stream_rate(spark: SparkSession, server: BenchServer, files: Path, count: int, folder: Path) -> float:
    """How many rows per second a stream with one batch stores, by the time that Spark reports for the sink."""
    emptied(server)
    frame = spark.readStream.schema("id string, due_ms bigint, topic string, value string").parquet(str(files))
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        writer = frame.writeStream.format("wheelsched").options(store=server.url, namespace=NAMESPACE)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [dict(one["durationMs"]) for one in query.recentProgress if one["numInputRows"]]
    with open_store(server.url, namespace=NAMESPACE, shards=_SHARDS) as store:
        stored = store.counts().total("due")
    assert stored == count, f"{stored} of {count} were stored"
    took_ms: int = sum(one["addBatch"] for one in progress)
    return count / (took_ms / 1000)


def read_rate(spark: SparkSession, server: BenchServer, count: int) -> float:
    """How many rows per second Spark reads from a full store, with all columns."""
    return count / read_seconds(spark, server, "true")


def read_seconds(spark: SparkSession, server: BenchServer, where: str) -> float:
    """How many seconds a query takes from planning to its last row. `where` is its condition in SQL."""
    frame = spark.read.format("wheelsched").options(store=server.url, namespace=NAMESPACE).load().where(where)
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def job_seconds(spark: SparkSession, folder: Path, sizes: Sizes, narration: Narration) -> dict[str, list[float]]:
    """How many seconds each job and each bare query takes over Parquet files, by name, a value per round."""
    from retry_topic.spark.jobs import backtest, slo, triage
    from retry_topic.spark.jobs.history import load_history

    history, letters = str(folder / "history.parquet"), str(folder / "letters.parquet")
    write_history(spark, history, sizes.attempts)
    write_letters(spark, letters, sizes.attempts)
    runs: dict[str, Callable[[], object]] = {
        "history": lambda: _grouped_and_counted(spark, history, "topic", "error_class", "outcome"),
        "backtest": lambda: backtest(load_history(spark, history)),
        "slo": lambda: slo(load_history(spark, history)),
        "letters": lambda: _grouped_and_counted(spark, letters, "topic", "error_class", "fingerprint"),
        "dlq": lambda: triage(spark.read.parquet(letters)).collect(),
    }
    for once in runs.values():
        once()
    return interleaved(sizes.job_rounds, {name: partial(_seconds, run) for name, run in runs.items()}, narration)


def _grouped_and_counted(spark: SparkSession, path: str, *columns: str) -> object:
    return spark.read.parquet(path).groupBy(*columns).count().collect()


def _seconds(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def write_history(spark: SparkSession, path: str, attempts: int) -> None:
    """Write a history of attempts for three topics, each with its own error class, probability and time of recovery.

    The delays between the attempts of a message double, with jitter.
    """
    laws = [("orders", "shop.Timeout", 0.95, 20), ("mail", "smtplib.Down", 0.8, 120), ("stock", "http.Limited", 0.9, 5)]
    messages = attempts // 5
    cases = ", ".join(f"named_struct('t', '{t}', 'e', '{e}', 'p', {p}D, 'm', {m}000D)" for t, e, p, m in laws)
    spark.range(0, messages, 1, 4).createOrReplaceTempView("bench_messages")
    looked = spark.sql(
        f"""
        with laws as (select id, array({cases})[id % 3] l, rand(5) u, rand(7) v from bench_messages),
        drawn as (select id, l.t topic, l.e error, 1000000 + id * 50 first,
                         if(u < l.p, -ln(1 - v) * l.m, 1e15D) recovers from laws),
        tries as (select *, explode(sequence(1, 8)) attempt from drawn),
        timed as (select *, if(attempt = 1, 0L, bigint(2000 * pow(2, attempt - 2) * (0.7 + 0.6 * rand(3)))) wait
                  from tries)
        select 'm' || id id, topic, attempt,
               if(attempt = 1, null, bigint(first + wait)) due_ms, bigint(first + wait + id % 4) started_ms,
               case when attempt > 1 and wait >= recovers then 'ok'
                    when attempt = 8 then 'dead' else 'failed' end outcome,
               if(attempt > 1 and wait >= recovers, null, error) error_class,
               min(if(attempt > 1 and wait >= recovers, attempt, 99)) over (partition by id) last
        from timed
        """  # noqa: S608  # of the constants above
    )
    looked.where("attempt <= last").drop("last").write.parquet(path)


def write_letters(spark: SparkSession, path: str, count: int) -> None:
    """Write dead letters with forty kinds of errors."""
    spark.range(0, count, 1, 4).selectExpr(
        "'d' || id id",
        "concat('topic-', id % 5) topic",
        "concat('shop.Error', id % 40) error_class",
        "concat('no answer after ', id, ' ms') error_message",
        "lower(hex(id % 40)) fingerprint",
        "1700000000000 + id at_ms",
        "int(8) attempt",
    ).write.parquet(path)
