"""The case `waiting`: what one more waiting message costs when many wait already.

Due times are spread over a day that begins in an hour. The server's time is the median over calls.

A server's hash table costs more time shortly before it doubles, and while it doubles. So the sizes are 10,000 times
powers of two: the table of the messages is equally full at each size.
"""

from __future__ import annotations

import random

from benchmarks.child import run_module
from benchmarks.growth.case import Case, Knee, Models, Points, Quantity, Sizes
from benchmarks.growth.model import CONSTANT, LINEAR, LOGARITHM, logarithm_from, passes
from benchmarks.growth.script_time import Pace, ScriptTime
from benchmarks.growth.store_costs import CLAIM, DAY_MS, FAR, claims, schedule_later
from benchmarks.messages import BATCH
from benchmarks.narration import Narration
from benchmarks.server import BenchServer, bench_server
from wheel_sched.store import DelayStore

LOOK = 1_000  # how many of the next items a look at the store reads
LOOKS = 25
_CLAIMS = 40
_MIB = 2**20
_FOUR_GIB = 4 * 2**30

QUANTITIES = (
    Quantity("schedule_us", "µs", "server's time to store a message, 500 a call", (LOGARITHM, logarithm_from(FAR))),
    Quantity("claim_us", "µs", "server's time to claim 80 due messages", (CONSTANT, LOGARITHM)),
    Quantity("settle_us", "µs", "server's time to settle 80 messages as done", (CONSTANT, LOGARITHM)),
    Quantity("look_ahead_us", "µs", "server's time to look at the next 1,000 messages", (CONSTANT, LOGARITHM)),
    Quantity("memory_mib", "MiB", "memory of the server, body of 100 bytes", (CONSTANT, LINEAR), drawn=False),
    Quantity("dispatcher_mib", "MiB", "resident memory of a dispatcher's process", (CONSTANT,), drawn=False),
)


def measure(sizes: Sizes, narration: Narration) -> Points:
    """Fill a store step by step, and measure all values at each size."""
    points: dict[str, dict[int, float]] = {quantity.key: {} for quantity in QUANTITIES}
    chance = random.Random(20)
    with bench_server() as server:
        store, pace = server.empty_store(), Pace(server.client)
        waiting = 0
        for size in sizes.measured:
            narration.step(f"{size:,} waiting messages")
            schedule_later(store, waiting, max(waiting, size - sizes.work), chance)
            pace.look(size)
            values = measured_at(server, store, max(waiting, size - sizes.work), size, sizes.work, chance)
            pace.look(size)
            waiting = size
            for key, value in values.items():
                points[key][size] = value
    pace.even(points, [key for key in points if key.endswith("_us")])
    return points


def measured_at(
    server: BenchServer, store: DelayStore, waiting: int, size: int, work: int, chance: random.Random
) -> dict[str, float]:
    """Add messages to the `waiting` ones until `size` wait, and measure at this size."""
    with ScriptTime(server.client) as storing:
        schedule_later(store, waiting, size, chance)
    claim_us, settle_us = claims(server, store, min(_CLAIMS, work // CLAIM))
    with ScriptTime(server.client) as looking:
        for _ in range(LOOKS):
            (window,) = store.windows(2 * DAY_MS, LOOK)
            assert len(window.dues) == min(LOOK, size)
    memory = server.used_memory()
    child = run_module("benchmarks.growth.dispatching", "rest", server.url)
    return {
        "schedule_us": storing.typical_us / min(BATCH, size - waiting),
        "claim_us": claim_us,
        "settle_us": settle_us,
        "look_ahead_us": looking.typical_us,
        "memory_mib": memory / _MIB,
        "dispatcher_mib": child["resident"] / _MIB,
    }


def knees(models: Models) -> list[Knee]:
    """Where a claim is long, and where the memory is full."""
    return [
        Knee(
            "a claim of 80 keeps the server busy for over 1 ms",
            passes(models["claim_us"], 1_000),
            "nothing at first, because batches become smaller; later shards on several servers",
        ),
        Knee(
            "the server needs over 4 GiB",
            passes(models["memory_mib"], _FOUR_GIB / _MIB),
            "a larger server, or shards over a Cluster; Spark can read and change this many messages",
        ),
        Knee(
            "a dispatcher needs over 1 GiB",
            passes(models["dispatcher_mib"], 1_024),
            "more services: each holds one alarm for each shard and the batches in flight, never the waiting messages",
        ),
    ]


CASE = Case(
    name="waiting",
    across="waiting messages",
    axis="server's time, µs",
    quantities=QUANTITIES,
    full=Sizes((10_000, 40_000, 160_000, 640_000, 1_280_000, 2_560_000), (5_120_000,), 10_000),
    quick=Sizes((2_500, 10_000, 20_000, 40_000), (5_120_000,), 2_500),
    measure=measure,
    knees=knees,
)
