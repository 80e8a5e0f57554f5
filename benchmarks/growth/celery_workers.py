"""The case `celery-workers`: how fast more and more Celery workers run tasks that are due at the same moment.

Each worker is a process with four threads. A task notes in the server when it ran. Workers fetch tasks up to a second
before they are due, so the first tasks run faster than workers can keep up. The rate is that of the second half.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.celery.site import site
from benchmarks.growth.case import Case, Knee, Models, Points, Quantity, Sizes
from benchmarks.growth.model import CONSTANT
from benchmarks.growth.shared_server import full_from, rates_of
from benchmarks.narration import Narration
from benchmarks.processor import Processor

_SETTLE_S = 0.5  # a worker that has just become ready still warms up
_LEAD_S = 2.0
_WARMING = 200  # tasks that do not count
_SENT_PER_S = 4_000  # how many tasks a second the slowest machine sends

QUANTITIES = (
    Quantity("rate_per_s", "1/s", "tasks run a second, workers and server on this machine"),
    Quantity("rate_apart_per_s", "1/s", "the same, if each worker and the server have a processor of their own"),
    Quantity("process_us", "µs", "processor time of the workers for a task", (CONSTANT,), drawn=False),
    Quantity("server_us", "µs", "processor time of the server for a task", (CONSTANT,), drawn=False),
)


def measure(sizes: Sizes, narration: Narration) -> Points:
    """Run the same number of tasks with each number of workers."""
    points: dict[str, dict[int, float]] = {"rate_per_s": {}, "process_us": {}, "server_us": {}}
    for size in sizes.measured:
        narration.step(f"{size} workers")
        rounds = _ran_by(size, sizes.work, sizes.rounds)
        for key in points:
            points[key][size] = median(found[key] for found in rounds)
    return points


def _ran_by(workers: int, tasks: int, rounds: int) -> list[dict[str, float]]:
    """Let these workers run the tasks, as often as `rounds` says, after a few tasks that do not count."""
    found: list[dict[str, float]] = []
    with site("ours", workers=workers) as place:
        time.sleep(_SETTLE_S)  # until the workers have started completely
        server, processes = Processor(place.server.pid), [Processor(worker.pid) for worker in place.workers]
        place.send([time.time()] * _WARMING)
        place.wait(lambda: place.ran() >= _WARMING, "the first tasks to run", 60.0)
        while len(found) < rounds:
            place.forget()
            due_s = time.time() + _LEAD_S + tasks / _SENT_PER_S
            place.send([due_s] * tasks)
            assert time.time() < due_s, "this machine is too slow to send the tasks before they are due"
            server_ns, workers_ns = server.worked_ns(), sum(each.worked_ns() for each in processes)
            place.wait(lambda: place.ran() >= tasks, "the tasks to run", 120.0)
            server_ns, workers_ns = server.worked_ns() - server_ns, sum(e.worked_ns() for e in processes) - workers_ns
            runs = place.runs()
            assert len({run.number for run in runs}) == len(runs) == tasks
            late_s = sorted(run.late_s for run in runs)
            found.append(
                {
                    "rate_per_s": (tasks - tasks // 2) / (late_s[-1] - late_s[tasks // 2 - 1]),
                    "process_us": workers_ns / 1000 / tasks,
                    "server_us": server_ns / 1000 / tasks,
                }
            )
    return found


def knees(models: Models) -> list[Knee]:
    """Where processors are full."""
    return [
        Knee(
            "the processors of this machine are full",
            full_from(models["rate_per_s"]),
            "more machines for workers: the tasks themselves usually need them first",
        ),
        Knee(
            "the server's one processor is full",
            full_from(models["rate_apart_per_s"]),
            "a server of its own for the store, then shards on several servers",
        ),
    ]


CASE = Case(
    name="celery-workers",
    across="Celery workers",
    axis="tasks a second",
    quantities=QUANTITIES,
    full=Sizes((1, 2, 4, 8), (16,), 8_000, rounds=3),
    quick=Sizes((1, 2), (4, 8), 2_000),
    measure=measure,
    models=rates_of,
    knees=knees,
)
