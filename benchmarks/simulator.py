"""`python -m benchmarks simulator`: how many histories the simulator runs, and whether its checker notices mistakes.

A history is one run of a whole simulated system: about three processes, 20 messages and up to 5 faults. A world is a
kind of system: a retry service, workers of Celery, or schedulers of APScheduler. For `histories_per_minute` an equal
number of histories of each world runs, on at most two processors. A safeguard is a line of the product that the
benchmark switches off, one at a time. A safeguard is missed when no history breaks a promise while it is off.

`history_vs_bare` is the processor time of a history, divided by that of 1,000 events of a bare event loop in the same
round (see `event_loop`). A history has about 1,000 turns of threads, so the figure also says how many bare events one
turn costs. Somebody who tests a system in virtual time without this simulator starts with such a loop. The number of
events is fixed, so the figure grows when a turn takes longer and when a history takes more turns. Processor time is
compared, because other programs would make the histories wait for longer than the short loop.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from benchmarks import event_loop
from benchmarks.figures import Figure
from benchmarks.measured import Measured
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, over_rounds, ratios
from tests.simulation.safeguards.finding import first_violation, load, shows, stored_history
from tests.simulation.safeguards.table import SAFEGUARDS
from wheel_sched.simulation.__main__ import kinds
from wheel_sched.simulation.runner import run_seeds

CORES = min(2, os.cpu_count() or 1)

FIGURES = (
    Figure(
        "history_vs_bare",
        "x",
        "processor time of a history, divided by that of 1,000 events of a bare event loop",
        at_most=250,
        baseline="baseline.bare_events_per_second",
    ),
    Figure("histories_per_minute", "1/min", "histories of whole systems, all kinds of worlds alike (our goal: 10,000)"),
    Figure("violations", "", "histories that broke a promise", at_most=0),
    Figure("safeguards", "", "safeguards that were switched off, one at a time", at_least=30),
    Figure("safeguards_missed", "", "safeguards without which no history broke a promise", at_most=0),
    Figure("steps_per_second", "1/s", "turns of simulated threads"),
    Figure("virtual_vs_real", "x", "virtual time divided by real time, on one processor"),
    Figure("baseline.bare_events_per_second", "1/s", "baseline: a bare event loop, by its processor time"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        rounds: in how many rounds the histories run, by turns with the baseline. Defaults to 5.
        histories: the number of histories of each world in a round. Defaults to 1,000.
        seeds: how many histories may run until one breaks a promise because a safeguard is off. 0: only the history
            runs that is known to break one. Defaults to 1,000.
    """

    rounds: int = 5
    histories: int = 1_000
    seeds: int = 1_000


FULL = Sizes()
QUICK = Sizes(rounds=3, histories=45, seeds=0)
_BARE_EVENTS, _EVENTS_PER_HISTORY = 1_000_000, 1_000


@dataclass(slots=True)
class _Histories:
    """The sums over all histories that ran. `worlds_s` has the seconds of each world."""

    violations: int = 0
    steps: int = 0
    virtual_ns: int = 0
    worlds_s: dict[str, float] = field(default_factory=dict)
    seeds_begun: int = 0

    def run(self, histories: int) -> float:
        """Run the next `histories` seeds in each world. Returns the processor time of one history, in seconds."""
        seeds = range(self.seeds_begun, self.seeds_begun + histories)
        self.seeds_begun += histories
        before_s = _children_s()
        for name, kind in kinds().items():
            began_s = time.perf_counter()
            for result in run_seeds(kind, seeds, cores=CORES):
                self.violations += bool(result.violations)
                self.steps += result.steps
                self.virtual_ns += result.virtual_ns
            self.worlds_s[name] = self.worlds_s.get(name, 0.0) + time.perf_counter() - began_s
        return (_children_s() - before_s) / (histories * len(kinds()))


def _children_s() -> float:
    """The processor time, in seconds, of all child processes that have ended.

    Each batch of histories (runs of a simulated system) runs in a child process.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    ran = Measured(sizes.rounds, sizes.histories, "histories of each world")
    return {
        **dict.fromkeys(("history_vs_bare", "histories_per_minute", "steps_per_second", "virtual_vs_real"), ran),
        "baseline.bare_events_per_second": Measured(sizes.rounds, _BARE_EVENTS, "events"),
    }


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    narration = Narration(2 * sizes.rounds + 1)
    histories = _Histories()
    runs: dict[str, Callable[[], float]] = {
        "histories": partial(histories.run, sizes.histories),
        "bare event loop": partial(event_loop.per_second, _BARE_EVENTS, CORES),
    }
    found = interleaved(sizes.rounds, runs, narration)
    narration.step("safeguards")
    safeguards, missed = _safeguards(sizes.seeds)
    narration.close()
    each, took_s = histories.seeds_begun, sum(histories.worlds_s.values())
    bare_s = [_EVENTS_PER_HISTORY / rate for rate in found["bare event loop"]]
    vs_bare = over_rounds(ratios(found["histories"], bare_s), 1)
    return {
        "history_vs_bare": vs_bare["median"],
        "spread": {"history_vs_bare": vs_bare},
        "histories_per_minute": round(60 * each * len(histories.worlds_s) / took_s),
        "histories": each * len(histories.worlds_s),
        "cores": CORES,
        "worlds": {name: round(60 * each / world_s) for name, world_s in histories.worlds_s.items()},
        "violations": histories.violations,
        "steps_per_second": round(histories.steps / took_s),
        "virtual_vs_real": round(histories.virtual_ns / 1e9 / took_s / CORES),
        "safeguards": safeguards,
        "safeguards_missed": len(missed),
        "missed_safeguards": missed,
        "baseline": {"bare_events_per_second": round(median(found["bare event loop"]))},
        "python": platform.python_version(),
        "core": "simulated servers, pure",
        "cpus": os.cpu_count() or 1,
        "rounds": sizes.rounds,
    }


def _safeguards(seeds: int) -> tuple[int, list[str]]:
    """How many safeguards were switched off, one at a time, and the names of those whose absence no history showed."""
    known, found = kinds(), load()
    missed = []
    shown = [safeguard for safeguard in SAFEGUARDS if not safeguard.hidden]
    for safeguard in shown:
        kind = known[safeguard.world]
        stored = stored_history(kind, found.get(safeguard.name))
        if stored is not None and shows(kind, safeguard, stored):
            continue
        if not seeds or first_violation(kind, safeguard, seeds) is None:
            missed.append(safeguard.name)
    return len(shown), missed
