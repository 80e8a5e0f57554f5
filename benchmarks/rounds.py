"""Runs measurements in turns, so that a slow moment of the machine affects all alike, and takes medians over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from benchmarks.narration import Narration

T = TypeVar("T")


def interleaved(rounds: int, runs: Mapping[str, Callable[[], T]], narration: Narration) -> dict[str, list[T]]:
    """Run each of `runs` once per round, in reverse order every second round. Returns the values by name."""
    values: dict[str, list[T]] = {name: [] for name in runs}
    for number in range(rounds):
        names = list(runs)[:: -1 if number % 2 else 1]
        for name in names:
            narration.step(f"{name}, round {number + 1} of {rounds}")
            values[name].append(runs[name]())
    return values


def ratios(ours: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Ours divided by the baseline, round by round: both ran in the same round, so a slow moment affects both."""
    return [mine / other for mine, other in zip(ours, baseline, strict=True)]


def over_rounds(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """The least, the median and the greatest of the values that the rounds gave."""
    return {
        "min": round(min(values), digits),
        "median": round(median(values), digits),
        "max": round(max(values), digits),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: always a value that was measured."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(values_ms: Sequence[float]) -> dict[str, float]:
    """The p50, the p99 and the maximum of the values."""
    return {
        "p50": round(percentile(values_ms, 50), 3),
        "p99": round(percentile(values_ms, 99), 3),
        "max": round(max(values_ms), 3),
    }


def median_spread(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median over rounds of each figure; `max` is the largest of all rounds."""
    return {
        name: max(r[name] for r in rounds) if name == "max" else round(median(r[name] for r in rounds), 3)
        for name in rounds[0]
    }
