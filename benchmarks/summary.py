"""The rows of the tables in docs/benchmarks.md: for each capability, our measured values beside those of peers.

A peer is what ours is compared with. The name of a value is its section and its key in docs/internals/figures.md, for
example `store/schedule_msgs_per_s`. In a table with several columns of values, the name is section, title, row and
column: `wheel, all/Schedule, uniform, ns/heapq/100k`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_ALL = "wheel, all/{}/{}/{}"
_SCHEDULE, _CONSTANT, _EXPIRE, _CANCELLED = (
    "Schedule, uniform, ns",
    "Schedule, constant, ns",
    "Expire, uniform, ns",
    "90 % cancelled, per request, uniform, ns",
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One row: a measured value of ours beside that of a peer in the same run.

    Args:
        measured: what is measured.
        peer: what ours is compared with, in words.
        ours: the name of our value. Defaults to "": only the ratio was measured.
        theirs: the name of the peer's value. Defaults to "": only the ratio was measured.
        ratio: the name of a measured ratio, above 1 where ours is better. Defaults to "": it is computed from the
            two values.
        more_is_better: whether the greater value is the better one. Defaults to False.
    """

    measured: str
    peer: str
    ours: str = ""
    theirs: str = ""
    ratio: str = ""
    more_is_better: bool = False


def _timer(measured: str, table: str, core: str, peer: str, count: str, ratio: str = "") -> Compared:
    return Compared(measured, f"`{peer}`", _ALL.format(table, core, count), _ALL.format(table, peer, count), ratio)


def _late(kind: str, share: str, text: str, peer: str) -> Compared:
    key = f"lateness_ms.{kind}.{share}"
    return Compared(text, peer, f"wheel/{key}", f"wheel/baseline.{key}")


_COMPILED, _PURE = "wheel, compiled", "wheel, pure"
_TIMERS = (
    _timer("expire one of 100,000 timers", _EXPIRE, _COMPILED, "kombu", "100k", "wheel/compiled_vs_kombu_100k.expire"),
    _timer("schedule one of 100,000 timers", _SCHEDULE, _COMPILED, "kombu", "100k"),
    _timer("expire one of 100,000 timers", _EXPIRE, _COMPILED, "heapq", "100k"),
    _timer(
        "a request, 90 % cancelled, 100,000 live",
        _CANCELLED,
        _COMPILED,
        "heapq",
        "100k",
        "wheel/compiled_vs_heapq_90cancelled.100k",
    ),
    _timer("schedule one of 100,000 timers", _SCHEDULE, _COMPILED, "heapq", "100k"),
    Compared("expire one of 100,000 timers", "Kafka's `SystemTimer`, JVM", ratio="wheel, jvm/vs_kafka.expire"),
    Compared("schedule one of 100,000 timers", "Kafka's `SystemTimer`, JVM", ratio="wheel, jvm/vs_kafka.add"),
    Compared("schedule one of 100,000 timers", "Netty's `HashedWheelTimer`, JVM", ratio="wheel, jvm/vs_netty.add"),
    _timer("without a compiler: expire one of 100,000", _EXPIRE, _PURE, "heapq", "100k"),
    _timer(
        "without a compiler: a request, 90 % cancelled, 10,000 live",
        _CANCELLED,
        _PURE,
        "heapq",
        "10k",
        "wheel/pure_vs_heapq_90cancelled_10k",
    ),
    _timer("without a compiler: schedule one of 100,000", _SCHEDULE, _PURE, "heapq", "100k"),
    _timer("without a compiler: schedule one of 100,000, constant timeouts", _CONSTANT, _PURE, "heapq", "100k"),
    _timer("without a compiler: expire one of 1,000", _EXPIRE, _PURE, "heapq", "1k"),
    _late("threads", "p99", "99 of 100 timers are no later, on a thread", "a thread that waits for each deadline"),
    _late("threads", "p50", "half of the timers are no later, on a thread", "a thread that waits for each deadline"),
    _late("asyncio", "p50", "half of the timers are no later, on asyncio", "the loop's own `call_later`"),
    _late("asyncio", "p99", "99 of 100 timers are no later, on asyncio", "the loop's own `call_later`"),
)
_STORE = (
    Compared(
        "messages stored a second",
        "a bare pipelined `ZADD`",
        "store/schedule_msgs_per_s",
        "store/baseline.zadd_msgs_per_s",
        "store/schedule_vs_zadd",
    ),
    Compared(
        "longest stall of another client while a backlog drains",
        "scripts of 1 ms, one after the other",
        "store/max_stall_ms",
        "store/baseline.script_stall_ms",
    ),
    Compared(
        "half of the messages of another process arrive within",
        "a bare `XADD`",
        "dispatch/wakeup_ms.p50",
        "dispatch/baseline.bare_wakeup_ms.p50",
    ),
    Compared(
        "half of the messages are no later",
        "a thread that sleeps and adds them",
        "dispatch/lateness_ms.p50",
        "dispatch/baseline.bare_lateness_ms.p50",
    ),
    Compared(
        "99 of 100 messages are no later",
        "a thread that sleeps and adds them",
        "dispatch/lateness_ms.p99",
        "dispatch/baseline.bare_lateness_ms.p99",
    ),
    Compared(
        "messages a second from a burst, memory broker",
        "a bare pipelined `XADD`",
        "dispatch/burst_memory_msgs_per_s",
        "dispatch/baseline.xadd_msgs_per_s",
        "dispatch/burst_memory_vs_xadd",
    ),
    Compared(
        "messages a second from a burst, to a stream",
        "a bare pipelined `XADD`",
        "dispatch/burst_streams_msgs_per_s",
        "dispatch/baseline.xadd_msgs_per_s",
        "dispatch/burst_streams_vs_xadd",
    ),
)
_PURGATORY = (
    Compared(
        "requests a second, half of them time out",
        "Kafka's old design",
        "purgatory/new_high_rate",
        "purgatory/old_high_rate",
        "purgatory/new_vs_old_high",
    ),
    Compared(
        "requests a second, few of them time out",
        "Kafka's old design",
        "purgatory/new_low_rate",
        "purgatory/old_low_rate",
        "purgatory/new_vs_old_low",
    ),
    Compared(
        "processor time of a request",
        "our design without locks and counters",
        "purgatory/cpu_us",
        "purgatory/baseline.bare_cpu_us",
    ),
)


def _stock(measured: str, section: str, key: str, peer: str, share: str = "") -> Compared:
    """A row that compares ours with stock: Celery or APScheduler without this integration."""
    return Compared(measured, peer, f"{section}/{key}.ours{share}", f"{section}/{key}.stock{share}")


def _job(measured: str, key: str) -> Compared:
    return _stock(measured, "apscheduler", key, "APScheduler's own")


_APSCHEDULER = (
    _job("longest stall of the event loop, 3,000 due coroutines on Redis", "loop_stall_ms_3k"),
    _job("longest `add_job` while 50,000 jobs are due", "add_job_ms_50k_due"),
    _job("one update among 1,000,000 jobs in memory", "update_us_1m"),
    _job("99 of 100 jobs are no later, at 10,000 a second", "p99_lateness_ms_10k"),
    Compared("a burst of one-shots on Redis", "its scheduler and store", ratio="apscheduler/redis_scheduler_vs_stock"),
    Compared("the same, our store in its scheduler", "its store", ratio="apscheduler/redis_store_vs_stock"),
    Compared("a burst of interval jobs in memory", "APScheduler's own", ratio="apscheduler/drain_interval_vs_stock"),
    Compared("a burst of one-shots in memory", "APScheduler's own", ratio="apscheduler/drain_date_vs_stock"),
    _job("half of the jobs are no later, at 10,000 a second", "p50_lateness_ms_10k"),
    _job("memory of the store for each job", "bytes_per_job"),
)


def _task(measured: str, key: str, share: str = "") -> Compared:
    return _stock(measured, "celery", key, "stock Celery", share)


_CELERY = (
    _task("growth of a worker's memory, 50,000 waiting ETA tasks", "worker_rss_growth_mb_50k"),
    _task("duplicate runs, ETA beyond the visibility timeout", "duplicates"),
    _task("tasks that did not run after a broker outage of 3 s, of 100", "outage_lost"),
    _task("99 of 100 tasks are no later, threads pool", "lateness_ms.threads", ".p99"),
    _task("the same after one of two workers was killed", "kill9_late_s"),
    Compared("tasks sent a second: `apply_many`", "stock `apply_async`", ratio="celery/apply_many_vs_stock"),
    _task("99 of 100 tasks are no later, prefork pool", "lateness_ms.prefork", ".p99"),
    Compared("tasks sent a second: `apply_async(countdown=...)`", "stock Celery", ratio="celery/enqueue_vs_stock"),
    _task("half of the tasks are no later, solo pool", "lateness_ms.solo", ".p50"),
    _task("half of the tasks are no later, threads pool", "lateness_ms.threads", ".p50"),
    _task("half of the tasks are no later, prefork pool", "lateness_ms.prefork", ".p50"),
    _task("99 of 100 tasks are no later, solo pool", "lateness_ms.solo", ".p99"),
)
_LEVELS, _ONE_TOPIC = "a topic per level of delay, pause and seek", "one topic for all delays, pause and seek"
_KAFKA = (
    Compared(
        "mixed delays: 99 of 100 are no later",
        _ONE_TOPIC,
        "kafka/mixed_lateness_ms.p99",
        "kafka/one_topic_lateness_ms.p99",
    ),
    Compared(
        "mixed delays: 99 of 100 are no later",
        _LEVELS,
        "kafka/mixed_lateness_ms.p99",
        "kafka/spring_style_lateness_ms.p99",
    ),
    Compared(
        "messages a second to the reader, all due at once",
        "bare transactions",
        "kafka/redeliver_msgs_per_s",
        "kafka/bare_transactions_msgs_per_s",
        "kafka/redeliver_vs_bare",
    ),
    Compared(
        "records taken in a second",
        "a bare loop without policies",
        "kafka/intake_msgs_per_s",
        "kafka/plain_msgs_per_s",
        "kafka/intake_vs_plain",
    ),
    Compared(
        "99 of 100 messages are no later", "bare transactions", "kafka/lateness_ms.p99", "kafka/bare_lateness_ms.p99"
    ),
    Compared(
        "half of the messages are no later", "bare transactions", "kafka/lateness_ms.p50", "kafka/bare_lateness_ms.p50"
    ),
)
_PLAIN_LOOP = "a plain loop of writes in one process"
_SPARK = (
    Compared(
        "rows read a second, every column",
        _PLAIN_LOOP,
        "spark/reader_rows_per_s",
        "spark/baseline.plain_rows_per_s",
        "spark/reader_vs_plain_write",
    ),
    Compared(
        "rows written a second",
        _PLAIN_LOOP,
        "spark/writer_rows_per_s",
        "spark/baseline.plain_rows_per_s",
        "spark/writer_vs_plain",
    ),
)
CAPABILITIES: Mapping[str, Sequence[Compared]] = {
    "timers": _TIMERS,
    "store": _STORE,
    "purgatory": _PURGATORY,
    "apscheduler": _APSCHEDULER,
    "celery": _CELERY,
    "kafka": _KAFKA,
    "spark": _SPARK,
}
