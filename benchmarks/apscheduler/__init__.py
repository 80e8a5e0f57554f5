"""`python -m benchmarks apscheduler` compares our jobstores and schedulers with APScheduler's own.

"Stock" is APScheduler alone, "ours" is with this project. They take turns, and every figure is a median over rounds. In
a burst all jobs are due at once. A figure of a burst is stock's time divided by ours. The other figures are given for
both, and the gate of ours is a multiple of stock's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from wheel_sched_apscheduler import WheelAsyncIOScheduler, WheelBackgroundScheduler, WheelJobStore

from benchmarks.apscheduler.drains import memory_drains, our_redis, redis_drains, stock_redis
from benchmarks.apscheduler.plots import write_plots
from benchmarks.apscheduler.waiting import lateness, loop_stall, worst_add
from benchmarks.child import run_module
from benchmarks.figures import Figure
from benchmarks.measured import Measured
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, median_spread, over_rounds, ratios
from benchmarks.server import bench_server, surroundings

__all__ = ["FIGURES", "FULL", "QUICK", "Sizes", "measured", "run", "write_plots"]


def _ours(key: str, unit: str, at_most: float) -> Figure:
    """Make a figure of ours, whose gate is `at_most` times the value of stock in the same run."""
    return Figure(key, unit, "ours", at_most=at_most, baseline=key.replace(".ours", ".stock"), in_baselines=True)


FIGURES = (
    Figure(
        "drain_date_vs_stock",
        "x",
        "burst of one-shots in memory, our scheduler and store",
        at_least=3,
        baseline="drain_us.date.stock",
    ),
    Figure(
        "drain_interval_vs_stock",
        "x",
        "burst of interval jobs in memory, our scheduler and store",
        at_least=3,
        baseline="drain_us.interval.stock",
    ),
    Figure(
        "redis_store_vs_stock",
        "x",
        "burst on Redis, our store in a stock scheduler",
        at_least=3,
        baseline="redis_us.stock",
    ),
    Figure(
        "redis_scheduler_vs_stock",
        "x",
        "burst on Redis, our store and our scheduler",
        at_least=8,
        baseline="redis_us.stock",
    ),
    Figure("p99_lateness_ms_10k.stock", "ms", "stock: 99 of 100 jobs at 10,000 a second"),
    _ours("p99_lateness_ms_10k.ours", "ms", 0.5),
    Figure("p50_lateness_ms_10k.stock", "ms", "stock: half of them"),
    Figure("p50_lateness_ms_10k.ours", "ms", "ours"),
    Figure("add_job_ms_50k_due.stock", "ms", "stock: longest `add_job` while 50,000 due jobs run"),
    _ours("add_job_ms_50k_due.ours", "ms", 0.1),
    Figure("loop_stall_ms_3k.stock", "ms", "stock: longest stall of the event loop, 3,000 due coroutines on Redis"),
    _ours("loop_stall_ms_3k.ours", "ms", 0.1),
    Figure("update_us_1m.stock", "µs", "stock: one update among a million jobs in memory"),
    _ours("update_us_1m.ours", "µs", 0.1),
    Figure("bytes_per_job.stock", "bytes", "stock: memory of the store beside the job itself"),
    Figure("bytes_per_job.ours", "bytes", "ours"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        rounds: rounds of each comparison. Defaults to 5.
        drain: jobs of a burst in memory. Defaults to 20,000.
        redis: jobs of a burst on Redis. Defaults to 5,000.
        waiting_rounds: rounds that measure lateness and `add_job`. Defaults to 3.
        stall_rounds: rounds that measure the longest stall of an event loop. Defaults to 5.
        lateness_s: for how many seconds jobs are due at a steady rate, while lateness is measured. Defaults to 5.
        million: how many jobs are in memory while an update is measured. Defaults to 1,000,000.
    """

    rounds: int = 5
    drain: int = 20_000
    redis: int = 5_000
    waiting_rounds: int = 3
    stall_rounds: int = 5
    lateness_s: float = 5.0
    million: int = 1_000_000


FULL = Sizes()
QUICK = Sizes(rounds=3, redis=2_000, waiting_rounds=1, stall_rounds=3, lateness_s=2.0)

_PER_S, _ADD_DUE, _STALL_DUE = 10_000, 50_000, 3_000


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    late = Measured(sizes.waiting_rounds, int(_PER_S * sizes.lateness_s), "jobs", sizes.lateness_s)
    return {
        **dict.fromkeys(("p99_lateness_ms_10k", "p50_lateness_ms_10k"), late),
        **dict.fromkeys(
            ("drain_date_vs_stock", "drain_interval_vs_stock"), Measured(sizes.rounds, sizes.drain, "jobs")
        ),
        **dict.fromkeys(
            ("redis_store_vs_stock", "redis_scheduler_vs_stock"), Measured(sizes.rounds, sizes.redis, "jobs")
        ),
    }


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    narration = Narration(7 * sizes.rounds + 4 * sizes.waiting_rounds + 2 * sizes.stall_rounds + 1)
    drains = {
        kind: interleaved(sizes.rounds, memory_drains(kind, sizes.drain), narration) for kind in ("date", "interval")
    }
    late: dict[str, Callable[[], dict[str, float]]] = {
        "stock lateness": lambda: lateness(BackgroundScheduler, MemoryJobStore(), _PER_S, sizes.lateness_s),
        "our lateness": lambda: lateness(WheelBackgroundScheduler, WheelJobStore(), _PER_S, sizes.lateness_s),
    }
    lates = interleaved(sizes.waiting_rounds, late, narration)
    stock_late, our_late = (median_spread(lates[name]) for name in late)
    adds = interleaved(
        sizes.waiting_rounds,
        {
            "stock add_job": lambda: worst_add(BackgroundScheduler, MemoryJobStore(), _ADD_DUE),
            "our add_job": lambda: worst_add(WheelBackgroundScheduler, WheelJobStore(), _ADD_DUE),
        },
        narration,
    )
    with bench_server() as server:
        on_redis = interleaved(sizes.rounds, redis_drains(server, sizes.redis), narration)
        stalls = interleaved(
            sizes.stall_rounds,
            {
                "stock event loop": lambda: loop_stall(AsyncIOScheduler, stock_redis(server), _STALL_DUE),
                "our event loop": lambda: loop_stall(WheelAsyncIOScheduler, our_redis(server), _STALL_DUE),
            },
            narration,
        )
        around = surroundings(server, sizes.rounds)
    narration.step(f"one update among {sizes.million:,} jobs")
    weighed = {
        name: run_module("benchmarks.apscheduler.million", name, str(sizes.million)) for name in ("stock", "ours")
    }
    narration.close()
    date_us = {name: median(drains["date"][f"{name}, date"]) for name in ("stock", "ours")}
    interval_us = {name: median(drains["interval"][f"{name}, interval"]) for name in ("stock", "ours")}
    redis_us = {name: median(values) for name, values in on_redis.items()}
    rounded = partial(round, ndigits=2)
    spread = {
        "drain_date_vs_stock": over_rounds(ratios(drains["date"]["stock, date"], drains["date"]["ours, date"])),
        "drain_interval_vs_stock": over_rounds(
            ratios(drains["interval"]["stock, interval"], drains["interval"]["ours, interval"])
        ),
        "redis_store_vs_stock": over_rounds(ratios(on_redis["stock redis"], on_redis["our redis store"])),
        "redis_scheduler_vs_stock": over_rounds(ratios(on_redis["stock redis"], on_redis["our redis scheduler"])),
    }
    return {
        **{name: found["median"] for name, found in spread.items()},
        "spread": spread,
        "p99_lateness_ms_10k": {"stock": stock_late["p99"], "ours": our_late["p99"]},
        "p50_lateness_ms_10k": {"stock": stock_late["p50"], "ours": our_late["p50"]},
        "add_job_ms_50k_due": {
            "stock": rounded(median(adds["stock add_job"])),
            "ours": rounded(median(adds["our add_job"])),
        },
        "loop_stall_ms_3k": {
            "stock": rounded(median(stalls["stock event loop"])),
            "ours": rounded(median(stalls["our event loop"])),
        },
        "update_us_1m": {name: rounded(found["update_us"]) for name, found in weighed.items()},
        "bytes_per_job": {name: round(found["bytes_per_job"]) for name, found in weighed.items()},
        "drain_us": {
            "date": {name: rounded(value) for name, value in date_us.items()},
            "interval": {name: rounded(value) for name, value in interval_us.items()},
        },
        "redis_us": {
            "stock": rounded(redis_us["stock redis"]),
            "our_store": rounded(redis_us["our redis store"]),
            "ours": rounded(redis_us["our redis scheduler"]),
        },
        "jobs": sizes.drain,
        "jobs_in_memory": sizes.million,
        **around,
    }
