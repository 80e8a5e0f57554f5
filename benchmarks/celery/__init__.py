"""`python -m benchmarks celery` compares ETA tasks in stock Celery ("stock") and with wheel_sched_celery ("ours").

Real workers run the same scenarios for both (see `scenarios`). Scenarios that measure milliseconds run alone, and stock
and ours take turns. The scenario for memory also runs alone. Scenarios that count lost and repeated runs come after it,
and run at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.celery import scenarios
from benchmarks.celery.site import KINDS, Kind, Site, site
from benchmarks.figures import Figure
from benchmarks.measured import Measured
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, over_rounds, ratios
from benchmarks.server import bench_server, surroundings

POOLS = ("solo", "threads", "prefork")
_MANY = 5  # apply_many is faster, so it sends this many times as many tasks


def _ours(key: str, unit: str, at_most: float, meaning: str = "the same, ours") -> Figure:
    """Make a figure of ours, whose gate is `at_most` times the value of stock in the same run."""
    stock = key.replace(".ours", ".stock")
    return Figure(key, unit, meaning, at_most=at_most, baseline=stock, in_baselines=True)


FIGURES: tuple[Figure, ...] = (
    Figure("worker_rss_growth_mb_50k.stock", "MB", "memory by which a worker grows with the waiting tasks, stock"),
    _ours("worker_rss_growth_mb_50k.ours", "MB", 0.1),
    Figure("prefetch_growth.stock", "messages", "growth of the prefetch count, stock"),
    Figure("prefetch_growth.ours", "messages", "the same, ours", at_most=0),
    Figure("lateness_ms.solo.stock.p50", "ms", "solo pool, half of the tasks, stock"),
    _ours("lateness_ms.solo.ours.p50", "ms", 3),
    Figure("lateness_ms.solo.stock.p99", "ms", "solo pool, 99 of 100, stock"),
    _ours("lateness_ms.solo.ours.p99", "ms", 1),
    Figure("lateness_ms.threads.stock.p50", "ms", "threads pool, half of the tasks, stock"),
    _ours("lateness_ms.threads.ours.p50", "ms", 3),
    Figure("lateness_ms.threads.stock.p99", "ms", "threads pool, 99 of 100, stock"),
    _ours("lateness_ms.threads.ours.p99", "ms", 1),
    Figure("lateness_ms.prefork.stock.p50", "ms", "prefork pool, half of the tasks, stock"),
    _ours("lateness_ms.prefork.ours.p50", "ms", 3),
    Figure("lateness_ms.prefork.stock.p99", "ms", "prefork pool, 99 of 100, stock"),
    _ours("lateness_ms.prefork.ours.p99", "ms", 1),
    Figure("tasks_per_s.solo.stock", "tasks/s", "solo pool, tasks run a second, stock"),
    Figure("tasks_per_s.solo.ours", "tasks/s", "the same, ours"),
    Figure(
        "enqueue_vs_stock",
        "x",
        "apply_async(countdown=...) against stock's rate",
        at_least=1,
        baseline="enqueue_per_s.stock",
    ),
    Figure(
        "apply_many_vs_stock",
        "x",
        "apply_many against stock's rate of apply_async",
        at_least=15,
        baseline="enqueue_per_s.stock",
    ),
    Figure("kill9_late_s.stock", "s", "one of two workers killed: 99 of 100 tasks, stock at its quickest sweep"),
    _ours("kill9_late_s.ours", "s", 0.5),
    Figure("duplicates.stock", "runs", "repeated runs, with the ETA beyond the visibility timeout, stock"),
    Figure("duplicates.ours", "runs", "the same, ours; also after the kill and the outage", at_most=0),
    Figure("outage_lost.stock", "tasks", "tasks that did not run after a broker outage of 3 s, stock"),
    Figure("outage_lost.ours", "tasks", "the same, ours", at_most=0),
    Figure("early", "tasks", "tasks that ran before their ETA, in all scenarios", at_most=0),
    Figure("lost", "tasks", "tasks of ours that never ran, in all scenarios", at_most=0),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the scenarios.

    Args:
        rounds: how often the enqueue rates are measured. Defaults to 7.
        enqueued: tasks sent one by one in a round. Defaults to 1,000.
        held: tasks that wait while memory is measured. Defaults to 50,000.
        late_rounds: how often the lateness of each pool is measured. Defaults to 3.
        late_tasks: tasks sent in each of these rounds. Defaults to 5,000.
        late_s: over how many seconds the due times of these tasks are spread. Defaults to 10.
        lead_s: how many seconds before the first due time the tasks are sent. Defaults to 10, which is long enough for
            stock's worker to receive them.
        give_up_s: how many seconds after the last due time a round waits for stock's missing runs. Defaults to 45.
        killed: tasks that wait when a worker is killed. Defaults to 1,000.
        killed_s: seconds from sending these tasks to their due time. Defaults to 10.
        visibility_s: the visibility timeout when a worker is killed. Defaults to 20; Celery's own default is an hour.
        doubled_s: seconds to the ETA of tasks that wait longer than a visibility timeout of 5 s. Defaults to 20.
        limit_s: how many seconds after its due time the scenarios of a killed worker and of an outage wait for a task.
            Defaults to 40.
        memory_first: whether memory is measured before the other scenarios begin, because stock's worker is busy while
            it receives the tasks. With few tasks the scenarios may run at the same time. Defaults to True.
        pools: the worker pools whose lateness is measured. Defaults to all three.
    """

    rounds: int = 7
    enqueued: int = 1_000
    held: int = 50_000
    late_rounds: int = 3
    late_tasks: int = 5_000
    late_s: float = 10.0
    lead_s: float = 10.0
    give_up_s: float = 45.0
    killed: int = 1_000
    killed_s: float = 10.0
    visibility_s: int = 20
    doubled_s: float = 20.0
    limit_s: float = 40.0
    memory_first: bool = True
    pools: tuple[str, ...] = POOLS


FULL = Sizes()
QUICK = Sizes(
    rounds=3,
    enqueued=200,
    held=2_000,
    late_rounds=1,
    late_tasks=1_000,
    late_s=3.0,
    lead_s=2.5,
    give_up_s=1.0,
    killed=200,
    killed_s=6.0,
    visibility_s=5,
    doubled_s=11.0,
    limit_s=12.0,
    memory_first=False,
)


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    late = Measured(sizes.late_rounds, sizes.late_tasks, "tasks", sizes.late_s)
    sent = Measured(sizes.rounds, sizes.enqueued, "tasks")
    return {
        **dict.fromkeys(("lateness_ms", "tasks_per_s"), late),
        **dict.fromkeys(("enqueue_vs_stock", "enqueue_per_s"), sent),
        "apply_many_vs_stock": Measured(sizes.rounds, _MANY * sizes.enqueued, "tasks"),
        "kill9_late_s": Measured(1, sizes.killed, "tasks"),
    }


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    narration = Narration(3 * sizes.rounds + 2 * len(sizes.pools) * sizes.late_rounds + 11)
    aside = _side_by_side(sizes, narration)
    with contextlib.ExitStack() as stack:
        sites: dict[Kind, Site] = {kind: stack.enter_context(site(kind)) for kind in KINDS}
        for kind in ("stock", "ours", "many"):
            scenarios.enqueue(kind, 50, sites)  # not measured: opens connections, declares queues, loads the scripts
        rates = interleaved(
            sizes.rounds,
            {
                kind: partial(scenarios.enqueue, kind, sizes.enqueued * (_MANY if kind == "many" else 1), sites)
                for kind in ("stock", "ours", "many")
            },
            narration,
        )
    waits: dict[str, Callable[[], scenarios.TaskLateness]] = {
        f"{pool} {kind}": partial(
            scenarios.lateness, kind, pool, sizes.late_tasks, sizes.late_s, sizes.lead_s, sizes.give_up_s
        )
        for pool in sizes.pools
        for kind in KINDS
    }
    late = interleaved(sizes.late_rounds, waits, narration)
    with bench_server() as server:
        around = surroundings(server, sizes.late_rounds)
    narration.close()
    speeds = {kind: median(found) for kind, found in rates.items()}
    spread = {
        "enqueue_vs_stock": over_rounds(ratios(rates["ours"], rates["stock"])),
        "apply_many_vs_stock": over_rounds(ratios(rates["many"], rates["stock"])),
    }
    survived = [aside[name][kind] for name in ("kill9", "doubled", "outage") for kind in KINDS]
    ours = [found for name, rounds in late.items() if name.endswith("ours") for found in rounds]
    return {
        "worker_rss_growth_mb_50k": {kind: aside["memory"][kind]["rss_mb"] for kind in KINDS},
        "prefetch_growth": {kind: aside["memory"][kind]["prefetch"] for kind in KINDS},
        "held_tasks": sizes.held,
        "lateness_ms": {
            pool: {
                kind: {
                    name: median(getattr(found, name) for found in late[f"{pool} {kind}"]) for name in ("p50", "p99")
                }
                for kind in KINDS
            }
            for pool in sizes.pools
        },
        "late_tasks": sizes.late_tasks,
        "tasks_per_s": {
            pool: {kind: median(found.tasks_per_s for found in late[f"{pool} {kind}"]) for kind in KINDS}
            for pool in sizes.pools
        },
        "enqueue_per_s": {kind: round(speed) for kind, speed in speeds.items()},
        **{name: found["median"] for name, found in spread.items()},
        "spread": spread,
        "kill9_late_s": {kind: aside["kill9"][kind]["late_s"] for kind in KINDS},
        "duplicates": {
            "stock": aside["doubled"]["stock"]["duplicates"],
            "ours": sum(aside[name]["ours"]["duplicates"] for name in ("kill9", "doubled", "outage")),
        },
        "outage_lost": {kind: aside["outage"][kind]["lost"] for kind in KINDS},
        "early": sum(each["early"] for each in survived) + sum(each.early for found in late.values() for each in found),
        "lost": sum(aside[name]["ours"]["lost"] for name in ("kill9", "doubled", "outage"))
        + sum(sizes.late_tasks - each.ran for each in ours),
        **around,
    }


def _side_by_side(sizes: Sizes, narration: Narration) -> dict[str, dict[str, Any]]:
    """Run the scenarios that do not measure milliseconds, for stock and ours at the same time."""
    runs: dict[str, Callable[[Kind], dict[str, Any]]] = {
        "memory": lambda kind: scenarios.memory(kind, sizes.held),
        "kill9": lambda kind: scenarios.kill9(kind, sizes.killed, sizes.killed_s, sizes.limit_s, sizes.visibility_s),
        "doubled": lambda kind: scenarios.doubled(kind, 100, sizes.doubled_s),
        "outage": lambda kind: scenarios.outage(kind, 100, 10.0, 3.0, sizes.limit_s),
    }
    done: dict[str, dict[str, Any]] = {name: {} for name in runs}
    groups = [["memory"], [name for name in runs if name != "memory"]] if sizes.memory_first else [list(runs)]
    for group in groups:
        narration.step(f"stock and ours side by side: {', '.join(group)}")
        with ThreadPoolExecutor(2 * len(group)) as pool:
            pending = {pool.submit(runs[name], kind): (name, kind) for name in group for kind in KINDS}
            for future in as_completed(pending):
                name, kind = pending[future]
                done[name][kind] = future.result()
                narration.step(f"{name}, {kind}: measured")
    return done
