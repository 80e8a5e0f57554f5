"""The case `jobs`: what one more APScheduler job costs when many jobs wait in the shared jobstore, or in memory.

The jobs run once, at times spread over a day that begins in an hour. At each number of jobs some due jobs are added
too, and a scheduler runs them: their functions only count their calls.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from wheel_sched_apscheduler import RedisWheelJobStore, WheelBackgroundScheduler

from benchmarks.apscheduler.drains import our_redis
from benchmarks.apscheduler.making import ALLOWED, date_trigger, expect, make_jobs, paused, wait_counted
from benchmarks.child import run_module
from benchmarks.growth.case import Case, Knee, Models, Points, Quantity, Sizes
from benchmarks.growth.model import CONSTANT, LINEAR, LOGARITHM, logarithm_from, passes
from benchmarks.growth.script_time import Pace, ScriptTime
from benchmarks.growth.shared_server import MICROSECONDS
from benchmarks.growth.store_costs import FAR
from benchmarks.messages import BATCH
from benchmarks.narration import Narration
from benchmarks.server import BenchServer, bench_server

if TYPE_CHECKING:
    from apscheduler.job import Job

_MIB = 2**20
_DAY_S = 86_400
_PART = 5_000
_ROUNDS = 3

QUANTITIES = (
    Quantity("add_us", "µs", "server's time to add a job, 500 a call", (LOGARITHM, logarithm_from(FAR))),
    Quantity("run_us", "µs", "server's time to hand out a due job and to end it", (CONSTANT, LOGARITHM)),
    Quantity("scheduler_us", "µs", "processor time of the scheduler's process for that", (CONSTANT, LOGARITHM)),
    Quantity("update_us", "µs", "jobs in memory: time to change the time of a job", (CONSTANT, LOGARITHM)),
    Quantity("memory_mib", "MiB", "memory of the server", (CONSTANT, LINEAR), drawn=False),
    Quantity("in_memory_mib", "MiB", "jobs in memory: memory of the jobstore itself", (LINEAR,), drawn=False),
)


def measure(sizes: Sizes, narration: Narration) -> Points:
    """Fill a jobstore step by step, and measure all values at each size."""
    points: dict[str, dict[int, float]] = {quantity.key: {} for quantity in QUANTITIES}
    chance = random.Random(20)
    with bench_server() as server:
        filling = our_redis(server)
        assert filling.lookup_job("absent") is None  # opens the connection, loads the scripts
        waiting, pace = 0, Pace(server.client)
        for size in sizes.measured:
            narration.step(f"{size:,} jobs")
            last = max(waiting, size - sizes.work)
            _add(filling, waiting, last, chance)
            pace.look(size)
            with ScriptTime(server.client) as adding:
                _add(filling, last, size, chance)
            waiting = size
            runs = [_ran(server, f"due{size}-{number}-", sizes.work) for number in range(_ROUNDS)]
            pace.look(size)
            child = run_module("benchmarks.apscheduler.million", "ours", str(size))
            points["add_us"][size] = adding.typical_us / min(BATCH, size - last)
            points["run_us"][size], points["scheduler_us"][size] = map(median, zip(*runs, strict=True))
            points["update_us"][size] = child["update_us"]
            points["memory_mib"][size] = server.used_memory() / _MIB
            points["in_memory_mib"][size] = child["bytes_per_job"] * size / _MIB
        filling.shutdown()
    pace.even(points, ["add_us", "run_us", "scheduler_us"])
    return points


def _add(store: RedisWheelJobStore, first: int, end: int, chance: random.Random) -> None:
    """Add the jobs with the numbers from `first` up to `end`."""
    begins = datetime.now(UTC) + timedelta(hours=1)
    for at in range(first, end, _PART):
        dues = (begins + timedelta(seconds=chance.randrange(_DAY_S)) for _ in range(at, min(at + _PART, end)))
        assert not store.add_jobs(list(_named(f"w{at}-", make_jobs(dues, date_trigger))))


def _ran(server: BenchServer, prefix: str, count: int) -> tuple[float, float]:
    """Run `count` due jobs whose ids begin with `prefix`. Returns the µs of the server and of this process for each."""
    store = RedisWheelJobStore(server.url, allow=ALLOWED)
    due = datetime.now(UTC) - timedelta(seconds=1)
    with paused(WheelBackgroundScheduler, store) as scheduler:
        assert not store.add_jobs(list(_named(prefix, make_jobs([due] * count, date_trigger))))
        expect(count)
        began_s = time.process_time()
        with ScriptTime(server.client) as running:
            scheduler.resume()
            wait_counted()
            while store.connection.store.counts().sizes["leased"]:
                time.sleep(0.01)  # until the last runs are settled
        spent_s = time.process_time() - began_s
    return running.us / count, spent_s * MICROSECONDS / count


def _named(prefix: str, jobs: Iterator[Job]) -> Iterator[Any]:
    """The same jobs with ids that begin with `prefix`."""
    for job in jobs:
        job.id = prefix + job.id
        yield job


def knees(models: Models) -> list[Knee]:
    """Where memory is full."""
    return [
        Knee(
            "the server needs over 4 GiB",
            passes(models["memory_mib"], 4_096),
            "a larger server, or shards over a Cluster",
        ),
        Knee(
            "running a job keeps the server busy for over 1 ms",
            passes(models["run_us"], 1_000),
            "shards on several servers",
        ),
        Knee(
            "the jobstore in memory needs over 1 GiB of the process",
            passes(models["in_memory_mib"], 1_024),
            "the shared jobstore: its process holds no waiting job",
        ),
    ]


CASE = Case(
    name="jobs",
    across="jobs",
    axis="time, µs",
    quantities=QUANTITIES,
    full=Sizes((2_500, 10_000, 40_000, 160_000, 640_000, 1_280_000), (5_120_000,), 5_000),
    quick=Sizes((2_500, 5_000, 20_000), (1_280_000,), 1_000),
    measure=measure,
    knees=knees,
)
