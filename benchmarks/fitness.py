"""Whether a machine is fit to measure: it must wake a sleeping thread in time and run equal work in equal time.

A shared machine can lose its processors to others for a while. Ratios within one run suffer less from that than
absolute figures, but a run during which no processor was free proves nothing. So the command measures the machine
before and after a benchmark. If it was unfit at one of the two times, the gates are neither passed nor failed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.rounds import percentile

OVERSLEEP_MS = 2.0  # the most that 95 of 100 sleeps may last too long
LOOP_SPREAD = 1.5  # 90 of 100 equal loops may take at most this many times the median time

_SLEEPS, _SLEEP_MS = 200, 2
_LOOPS, _TURNS = 60, 100_000


@dataclass(frozen=True, slots=True)
class Fitness:
    """How regularly a machine sleeps and computes while no benchmark runs.

    Args:
        oversleep_ms: 95 of 100 sleeps of a thread lasted at most this much too long.
        loop_spread: 90 of 100 equal loops took at most this many times the median time.
        loop_ms: the median time of one loop.
    """

    oversleep_ms: float
    loop_spread: float
    loop_ms: float

    @property
    def problems(self) -> list[str]:
        """Why the machine is unfit to measure. Empty: it is fit."""
        found = []
        if self.oversleep_ms > OVERSLEEP_MS:
            found.append(f"a sleeping thread woke {self.oversleep_ms:.1f} ms late, the limit is {OVERSLEEP_MS:g} ms")
        if self.loop_spread > LOOP_SPREAD:
            found.append(f"equal loops differed by a factor of {self.loop_spread:.2f}, the limit is {LOOP_SPREAD:g}")
        return found


def measure() -> Fitness:
    """Measure the machine for about a second."""
    late_ms = [_oversleep_ms() for _ in range(_SLEEPS)]
    loops_ms = [_loop_ms() for _ in range(_LOOPS)]
    usual = median(loops_ms)
    spread = percentile(loops_ms, 90) / usual
    return Fitness(round(percentile(late_ms, 95), 3), round(spread, 3), round(usual, 3))


def judged(before: Fitness, after: Fitness) -> dict[str, Any]:
    """The fitness as a part of a result: both measurements, and `unfit`, the list of reasons."""
    return {"before": asdict(before), "after": asdict(after), "unfit": _reasons(before, after)}


def _reasons(before: Fitness, after: Fitness) -> Sequence[str]:
    named = {"before": before, "after": after}
    return [f"{when} the run {problem}" for when, fitness in named.items() for problem in fitness.problems]


def _oversleep_ms() -> float:
    due_ns = time.monotonic_ns() + _SLEEP_MS * 1_000_000
    time.sleep(_SLEEP_MS / 1000)  # this sleep is measured
    return (time.monotonic_ns() - due_ns) / 1_000_000


def _loop_ms() -> float:
    began_ns = time.perf_counter_ns()
    for _ in range(_TURNS):
        pass
    return (time.perf_counter_ns() - began_ns) / 1_000_000
