"""The case `topics`: what messages cost when they are of many topics. The topics of messages take turns.

So a call of 500 messages touches up to 500 topics, and a claim up to 80. Each number of topics has an empty server.
"""

from __future__ import annotations

import random

from benchmarks.growth.case import Case, Knee, Models, Points, Quantity, Sizes
from benchmarks.growth.model import CONSTANT, LINEAR, at_most, passes
from benchmarks.growth.script_time import Pace, ScriptTime
from benchmarks.growth.store_costs import CLAIM, claims, schedule_later
from benchmarks.messages import BATCH
from benchmarks.narration import Narration
from benchmarks.server import BenchServer, bench_server

_MIB = 2**20
_COUNTS = 9

QUANTITIES = (
    Quantity("schedule_us", "µs", "server's time to store a message, 500 a call", (CONSTANT, at_most(BATCH))),
    Quantity("claim_us", "µs", "server's time to claim 80 messages of a burst", (CONSTANT, at_most(CLAIM))),
    Quantity("settle_us", "µs", "server's time to settle 80 messages as done", (CONSTANT, at_most(CLAIM))),
    Quantity("counts_us", "µs", "server's time to count the messages of each topic", (CONSTANT, LINEAR)),
    Quantity(
        "memory_mib", "MiB", "memory of the server; the messages are equally many", (CONSTANT, LINEAR), drawn=False
    ),
)


def measure(sizes: Sizes, narration: Narration) -> Points:
    """Measure all values with each number of topics."""
    points: dict[str, dict[int, float]] = {quantity.key: {} for quantity in QUANTITIES}
    with bench_server() as server:
        pace = Pace(server.client)
        for size in sizes.measured:
            narration.step(f"{size:,} topics")
            pace.look(size)
            for key, value in _measured_at(server, size, max(sizes.work, sizes.measured[-1])).items():
                points[key][size] = value
            pace.look(size)
    pace.even(points, [key for key in points if key.endswith("_us")])
    return points


def _measured_at(server: BenchServer, topics: int, messages: int) -> dict[str, float]:
    store = server.empty_store()
    with ScriptTime(server.client) as storing:
        schedule_later(store, 0, messages, random.Random(20), topics)
    with ScriptTime(server.client) as counting:
        for _ in range(_COUNTS):
            assert len(store.counts().topics) == topics
    memory = server.used_memory()
    claim_us, settle_us = claims(server, store, messages // CLAIM, topics)
    return {
        "schedule_us": storing.typical_us / BATCH,
        "claim_us": claim_us,
        "settle_us": settle_us,
        "counts_us": counting.typical_us,
        "memory_mib": memory / _MIB,
    }


def knees(models: Models) -> list[Knee]:
    """Where a claim is long, and where counting is long."""
    return [
        Knee(
            "counting the messages of each topic keeps the server busy for over 1 ms",
            passes(models["counts_us"], 1_000),
            "fewer scrapes and looks at the dashboard, or a namespace for each part of the topics",
        ),
        Knee(
            "counting the messages of each topic keeps the server busy for over 10 ms",
            passes(models["counts_us"], 10_000),
            "a namespace for each part of the topics, so that one look asks for one part",
        ),
        Knee(
            "a claim of 80 keeps the server busy for over 1 ms",
            passes(models["claim_us"], 1_000),
            "nothing: batches become smaller, and a batch never has more topics than messages",
        ),
    ]


CASE = Case(
    name="topics",
    across="topics",
    axis="server's time, µs",
    quantities=QUANTITIES,
    full=Sizes((1, 10, 100, 1_000, 3_000, 10_000), (30_000,), 20_000),
    quick=Sizes((1, 10, 100, 1_000), (10_000,), 4_000),
    measure=measure,
    knees=knees,
)
