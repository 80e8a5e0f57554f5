"""`python -m benchmarks simulator`: how many histories the simulator runs, and whether its checker notices mistakes.

A history is one run of a whole simulated system: about three processes, 20 messages and up to 5 faults. A world is a
kind of system: a retry service, workers of Celery, or schedulers of APScheduler. For `histories_per_minute` an equal
number of histories of each world runs, on at most two processors. A safeguard is a line of the product that the
benchmark switches off, one at a time. A safeguard is missed when no history breaks a promise while it is off.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Figure
from benchmarks.narration import Narration
from tests.simulation.safeguards.finding import first_violation, load, shows
from tests.simulation.safeguards.table import SAFEGUARDS
from wheel_sched.simulation.__main__ import kinds
from wheel_sched.simulation.runner import run_seeds

CORES = min(2, os.cpu_count() or 1)

FIGURES = (
    Figure("histories_per_minute", "1/min", "histories of whole systems, all kinds of worlds alike", at_least=10_000),
    Figure("violations", "", "histories that broke a promise", at_most=0),
    Figure("safeguards", "", "safeguards that were switched off, one at a time", at_least=30),
    Figure("safeguards_missed", "", "safeguards without which no history broke a promise", at_most=0),
    Figure("steps_per_second", "1/s", "turns of simulated threads"),
    Figure("virtual_vs_real", "x", "virtual time divided by real time, on one processor"),
    Figure("baseline.calls_per_second", "1/s", "baseline: empty function calls of this interpreter on one processor"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        histories: the number of histories of each world. Defaults to 5,000.
        seeds: how many histories may run until one breaks a promise because a safeguard is off. 0: only the history
            runs that is known to break one. Defaults to 1,000.
    """

    histories: int = 5_000
    seeds: int = 1_000


FULL = Sizes()
QUICK = Sizes(histories=200, seeds=0)


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    known = kinds()
    narration = Narration(len(known) + 1)
    worlds: dict[str, int] = {}
    violations, steps, virtual_ns, took_s = 0, 0, 0, 0.0
    for name, kind in known.items():
        narration.step(f"histories of the world {name}")
        began_s = time.perf_counter()
        for result in run_seeds(kind, range(sizes.histories), cores=CORES):
            violations += bool(result.violations)
            steps += result.steps
            virtual_ns += result.virtual_ns
        world_s = time.perf_counter() - began_s
        worlds[name] = round(60 * sizes.histories / world_s)
        took_s += world_s
    narration.step("safeguards")
    safeguards, missed = _safeguards(sizes.seeds)
    return {
        "histories_per_minute": round(60 * sizes.histories * len(known) / took_s),
        "histories": sizes.histories * len(known),
        "cores": CORES,
        "worlds": worlds,
        "violations": violations,
        "steps_per_second": round(steps / took_s),
        "virtual_vs_real": round(virtual_ns / 1e9 / took_s / CORES),
        "safeguards": safeguards,
        "safeguards_missed": len(missed),
        "missed_safeguards": missed,
        "baseline": {"calls_per_second": _calls_per_second()},
        "python": platform.python_version(),
        "core": "simulated servers, pure",
        "cpus": os.cpu_count() or 1,
        "rounds": 1,
    }


def _safeguards(seeds: int) -> tuple[int, list[str]]:
    """How many safeguards were switched off, and the names of those without which no history broke a promise."""
    known, found = kinds(), load()
    missed = []
    shown = [safeguard for safeguard in SAFEGUARDS if not safeguard.hidden]
    for safeguard in shown:
        kind, entry = known[safeguard.world], found.get(safeguard.name)
        if entry is not None and entry.seed is not None and shows(kind, safeguard, kind.draw(entry.seed)):
            continue
        if not seeds or first_violation(kind, safeguard, seeds) is None:
            missed.append(safeguard.name)
    return len(shown), missed


def _nothing() -> None:
    pass


def _calls_per_second() -> int:
    began_s = time.perf_counter()
    for _ in range(1_000_000):
        _nothing()
    return round(1_000_000 / (time.perf_counter() - began_s))
