"""The case `partitions`: what a failed message costs the intake when the retry topic has many Kafka partitions.

The same backlog lies in one partition, or evenly in many. A log batch has records of one partition, so more partitions
make smaller batches when the backlog is short. One member of the group reads all partitions.
"""

from __future__ import annotations

from statistics import median

from benchmarks.growth.case import Case, Knee, Models, Points, Quantity, Sizes
from benchmarks.growth.model import CONSTANT, LINEAR, passes
from benchmarks.growth.script_time import Pace, ScriptTime
from benchmarks.growth.shared_server import MICROSECONDS
from benchmarks.kafka.site import Site, site, take_in
from benchmarks.narration import Narration

_KEYS = 10_000  # so many message keys that each partition gets some
_WARMING = 1_000  # messages that do not count

QUANTITIES = (
    Quantity("message_us", "µs", "time by the clock for a message", (CONSTANT, LINEAR)),
    Quantity("service_us", "µs", "processor time of the service's process for a message", (CONSTANT, LINEAR)),
    Quantity("store_us", "µs", "server's time in scripts for a message", (CONSTANT, LINEAR)),
)


def measure(sizes: Sizes, narration: Narration) -> Points:
    """Take the same backlog in from each number of partitions."""
    points: dict[str, dict[int, float]] = {quantity.key: {} for quantity in QUANTITIES}
    with site() as where:
        take_in(where, _WARMING)
        pace = Pace(where.server.client)
        for size in sizes.measured:
            narration.step(f"{size} partitions")
            pace.look(size)
            rounds = [_taken_in(where, size, sizes.work) for _ in range(sizes.rounds)]
            for key in points:
                points[key][size] = median(found[key] for found in rounds)
            pace.look(size)
    pace.even(points, points)
    return points


def _taken_in(where: Site, partitions: int, count: int) -> dict[str, float]:
    with ScriptTime(where.server.client) as storing:
        found = take_in(where, count, partitions, _KEYS)
    return {
        "message_us": found.took_s * MICROSECONDS / count,
        "service_us": found.processor_s * MICROSECONDS / count,
        "store_us": storing.us / count,
    }


def knees(models: Models) -> list[Knee]:
    """Where the intake is half as fast as from one partition."""
    return [
        Knee(
            "a message takes twice the time of one partition",
            passes(models["message_us"], 2 * models["message_us"].at(1)),
            "fewer partitions for the retry topic: it needs no more than the group has members",
        ),
    ]


CASE = Case(
    name="partitions",
    across="Kafka partitions",
    axis="time for a message, µs",
    quantities=QUANTITIES,
    full=Sizes((1, 4, 16, 64, 256), (1_024,), 20_000, rounds=3),
    quick=Sizes((1, 4, 16), (256,), 3_000),
    measure=measure,
    knees=knees,
)
