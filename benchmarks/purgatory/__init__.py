"""`python -m benchmarks purgatory`: the benchmark of Kafka's purgatory redesign, old design against new.

A design is a way to build the purgatory: "new" is ours, "old" is Kafka's before its redesign, and "bare" is ours
without locks and statistics, as a lower bound.

The rate of requests rises until a design no longer sustains it. A design sustains a rate when requests are made at 98 %
of the rate or more, and all have ended shortly after the last was made. A rate that was missed is tried once more,
because other programs may have disturbed the machine. The search is repeated, from the rate that it found before, and
the figures are medians over these searches. A design that missed the lowest rate twice is not searched again: every
search counts as 0. A point is one design at one rate. Each point is measured in a process of its own, and the designs
take turns.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from statistics import median, median_low
from typing import Any

from benchmarks.child import run_module
from benchmarks.figures import Figure
from benchmarks.measured import Measured
from benchmarks.narration import Narration
from benchmarks.purgatory.demand import CASES
from benchmarks.purgatory.plots import write_plots
from benchmarks.rounds import over_rounds, ratios
from wheel_sched.wheel import CORE

__all__ = ["FIGURES", "FULL", "QUICK", "Sizes", "measured", "run", "write_plots"]

FIGURES = (
    Figure("new_low_rate", "req/s", "highest rate sustained, few time out (our goal: 150,000)"),
    Figure("new_high_rate", "req/s", "the same, half of them time out (the original's headline: 105,000)"),
    Figure("old_low_rate", "req/s", "the old design, few time out"),
    Figure("old_high_rate", "req/s", "the old design, half of them time out"),
    Figure("new_vs_old_low", "x", "new divided by old, few time out", at_least=3, baseline="old_low_rate"),
    Figure("new_vs_old_high", "x", "new divided by old, half of them time out", at_least=3, baseline="old_high_rate"),
    Figure("pure_high_rate", "req/s", "the new design on the pure core, half of them time out (our goal: 80,000)"),
    Figure(
        "cpu_vs_bare",
        "x",
        "processor time per request, divided by that without locks",
        at_most=1.5,
        baseline="baseline.bare_cpu_us",
    ),
    Figure("cpu_us", "µs", "processor time per request, harness included"),
    Figure("baseline.bare_cpu_us", "µs", "baseline: processor time per request without locks and statistics"),
    Figure("heartbeats_per_s", "beats/s", "one thread (our goal: 500,000)"),
    Figure("bytes_per_member", "bytes", "memory per member, its id not included"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        rates: target rates in requests a second, rising.
        new_from: the first rate at which the new design is measured.
        seconds: how long each point is measured; 0: until `requests` are made.
        requests: how many requests are made at each point.
        searches: how often the highest rate of the new and of the old design is searched.
        rounds: rounds that compare the new design with the bare design.
        bare_rate: the target rate of these rounds.
        tries: how often a rate is tried.
        members, beats: how many members the heartbeat monitor has, and how many heartbeats they send.
        sizes: wheel sizes that are measured besides the default.
    """

    rates: tuple[int, ...] = (10_000, 20_000, 40_000, 60_000, 80_000, 105_000, 120_000, 150_000, 200_000)
    new_from: int = 10_000
    seconds: float = 0
    requests: int = 1_000_000
    searches: int = 3
    rounds: int = 3
    bare_rate: int = 40_000
    tries: int = 2
    members: int = 1_000_000
    beats: int = 2_000_000
    sizes: tuple[int, ...] = (32,)  # Kafka's 20, rounded up to a power of two


FULL = Sizes()
QUICK = Sizes(
    rates=(5_000, 10_000, 20_000, 40_000, 80_000, 105_000, 150_000, 200_000),
    new_from=40_000,
    seconds=0.7,
    searches=2,
    rounds=3,
    beats=1_000_000,
    sizes=(),
)


_SEARCHED = tuple((design, case) for design in ("old", "new") for case in CASES)


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    seconds = sizes.seconds or None
    requests = None if seconds else sizes.requests
    search = Measured(sizes.searches, requests, "requests at each rate", seconds)
    cost_requests = int(sizes.bare_rate * seconds) if seconds else sizes.requests
    cost = Measured(sizes.rounds, cost_requests, "requests", cost_requests / sizes.bare_rate)
    return {
        **dict.fromkeys(("new_low_rate", "new_high_rate", "old_low_rate", "old_high_rate"), search),
        **dict.fromkeys(("new_vs_old_low", "new_vs_old_high"), search),
        "pure_high_rate": replace(search, rounds=1),
        **dict.fromkeys(("cpu_vs_bare", "cpu_us", "baseline.bare_cpu_us"), cost),
        "heartbeats_per_s": Measured(1, sizes.beats, "beats"),
    }


def run(sizes: Sizes) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key."""
    narration = Narration(4 * len(sizes.rates) + 12 * (sizes.searches - 1) + 4 * sizes.rounds + 4)
    bench = _Bench(sizes, narration)
    near = {(design, case): sizes.new_from if design == "new" else sizes.rates[0] for design, case in _SEARCHED}
    found: dict[tuple[str, str], list[int]] = {searched: [] for searched in _SEARCHED}
    for _ in range(sizes.searches):
        best = bench.highest_rates(near)
        for searched in _SEARCHED:
            found[searched].append(best.get(searched, 0))
        near = {searched: rate for searched, rate in best.items() if rate}
    pure_best = 0
    for rate in [rate for rate in sizes.rates if rate >= 40_000]:
        if not bench.sustains("new", "high", rate, core="pure"):
            break
        pure_best = rate
    for size in sizes.sizes:
        for case in CASES:
            bench.point("new", case, sizes.bare_rate, wheel_size=size)
    costs = bench.costs()
    narration.step(f"{sizes.members:,} members, {sizes.beats:,} beats")
    beats = run_module("benchmarks.purgatory.heartbeats", str(sizes.members), str(sizes.beats))
    narration.close()
    spread = _spread(found, costs, sizes.rates[0])
    return {
        "core": CORE,
        **{f"{design}_{case}_rate": median_low(rates) for (design, case), rates in found.items()},
        **{key: rounds["median"] for key, rounds in spread.items()},
        "spread": spread,
        "pure_high_rate": pure_best,
        "cpu_us": round(median(value for new, _ in costs.values() for value in new), 2),
        "baseline": {"bare_cpu_us": round(median(value for _, bare in costs.values() for value in bare), 2)},
        **beats,
        "members": sizes.members,
        "points": bench.points,
        "python": platform.python_version(),
        "server": f"{CORE} core",
        "cpus": os.cpu_count(),
        "rounds": sizes.rounds,
    }


def _spread(
    found: dict[tuple[str, str], list[int]], costs: dict[str, tuple[list[float], list[float]]], lowest: int
) -> dict[str, dict[str, float]]:
    """The least, median and greatest ratio over rounds: new to old for both cases, and new to bare for the worse case.

    If the old design misses the lowest rate, that rate counts as sustained, so the ratio is a lower bound.
    """
    over_old = {
        f"new_vs_old_{case}": ratios(found["new", case], [max(best, lowest) for best in found["old", case]])
        for case in CASES
    }
    over_bare = [over_rounds(ratios(new, bare), 2) for new, bare in costs.values()]
    worse = max(over_bare, key=lambda rounds: rounds["median"])
    return {**{key: over_rounds(values, 2) for key, values in over_old.items()}, "cpu_vs_bare": worse}


class _Bench:
    def __init__(self, sizes: Sizes, narration: Narration) -> None:
        self._sizes = sizes
        self._narration = narration
        self.points: list[dict[str, Any]] = []

    def sustains(self, design: str, case: str, rate: int, core: str = CORE) -> bool:
        """Whether the design sustains the rate in at least one of the tries."""
        return any(
            self.point(design, case, rate, core=core, seed=1 + attempt)["sustained"]
            for attempt in range(self._sizes.tries)
        )

    def highest_rates(self, near: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        """Search the highest rate that each design sustains in each case; 0 if it misses even the lowest rate.

        The searches take turns, so that a slow moment of the machine affects all. `near` has the rates to begin with.
        """
        best = dict.fromkeys(near, 0)
        searches = {searched: self._climb(*searched, rate) for searched, rate in near.items()}
        while searches:
            for searched, search in list(searches.items()):
                rate = next(search, None)
                if rate is None:
                    del searches[searched]
                else:
                    best[searched] = rate
        return best

    def _climb(self, design: str, case: str, near: int) -> Iterator[int]:
        """Try higher rates than `near`, or lower ones if `near` is missed. Yields the best rate after each try."""
        rates = self._sizes.rates
        at = rates.index(near)
        if not self.sustains(design, case, near):
            for rate in reversed(rates[:at]):
                yield 0
                if self.sustains(design, case, rate):
                    yield rate
                    return
            yield 0
            return
        yield near
        for rate in rates[at + 1 :]:
            if not self.sustains(design, case, rate):
                return
            yield rate

    def point(
        self, design: str, case: str, rate: int, *, core: str = CORE, wheel_size: int = 4096, seed: int = 1
    ) -> dict[str, Any]:
        """Measure one design at one rate. Returns the result, and adds it to `points`."""
        self._narration.step(f"{design}, {case} time-outs, {rate:,} a second, {core} core")
        seconds = self._sizes.seconds
        requests = int(rate * seconds) if seconds else self._sizes.requests
        load = {
            "design": design,
            "case": case,
            "rate": rate,
            "requests": requests,
            "wheel_size": wheel_size,
            "seed": seed,
        }
        point = run_module("benchmarks.purgatory.load", json.dumps(load), pure=core == "pure")
        point |= {"core": core, "wheel_size": wheel_size, "requests": requests}
        self.points.append(point)
        return point

    def costs(self) -> dict[str, tuple[list[float], list[float]]]:
        """Processor time per request, in µs, of the new and of the bare design, by case."""
        costs: dict[str, tuple[list[float], list[float]]] = {case: ([], []) for case in CASES}
        for turn, case in product(range(self._sizes.rounds), CASES):
            for design in ("new", "bare") if turn % 2 else ("bare", "new"):
                costs[case][design == "bare"].append(self.point(design, case, self._sizes.bare_rate)["cpu_us"])
        return costs
