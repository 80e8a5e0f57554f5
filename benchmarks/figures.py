"""Figures and their gates. The tables, docs/benchmarks.md and the exit code are made from them.

A gate is a bound that a figure must keep. A figure that is missing or not a number misses its gate, so a benchmark that
measured nothing never passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measured import text_of

Result = Mapping[str, Any]
WORSE_PERCENT = 10.0  # a comparison of runs allows a gated figure to be worse by this much


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a result.

    Args:
        key: where the value is in the result; "a.b" is the value `b` in the object `a`.
        unit: the unit of the value.
        meaning: one line that explains the figure.
        at_least: the gate as a lower bound. Defaults to None: no bound.
        at_most: the gate as an upper bound. Defaults to None: no bound.
        baseline: the key of the figure that this one is compared with, measured in the same run. Defaults to "": this
            figure is a count, or its gate needs no baseline.
        in_baselines: whether the gate is a multiple of the baseline's value. Defaults to False: the figure itself is a
            ratio to the baseline, or a count.
    """

    key: str
    unit: str
    meaning: str
    at_least: float | None = None
    at_most: float | None = None
    baseline: str = ""
    in_baselines: bool = False

    def value(self, result: Result) -> float | None:
        """The value of the figure in `result`; None if it is absent or not a number."""
        return _number(result, self.key)

    def baseline_value(self, result: Result) -> float | None:
        """The value of the figure's baseline in `result`; None if it is absent or not a number."""
        return _number(result, self.baseline) if self.baseline else None

    def spread(self, result: Result) -> Mapping[str, float] | None:
        """The least, median and greatest value over the rounds (`min`, `median`, `max`); None if it has one value."""
        found: Mapping[str, float] | None = result.get("spread", {}).get(self.key)
        return found

    def measured(self, result: Result) -> str:
        """How long the figure was measured, e.g. "5 x 2,000 messages in 5 s"; "" if the result does not say it."""
        key = self.measured_with(result)
        return text_of(result["measured"][key]) if key else ""

    def measured_with(self, result: Result) -> str:
        """The key in the object `measured` of the result: the figure's key or a beginning of it; "" if absent."""
        key = self.key
        while key and key not in result.get("measured", {}):
            key = key.rpartition(".")[0]
        return key

    def ratio(self, result: Result) -> float | None:
        """The value as a ratio, for a figure whose gate is on a ratio or is a multiple of its baseline.

        None for other figures, and if the value is absent or the baseline is 0.
        """
        if not self.bound:
            return None
        value = self.value(result)
        if not self.in_baselines:
            return value if self.unit == "x" else None
        scale = self.baseline_value(result)
        return value / scale if value is not None and scale else None

    @property
    def better(self) -> str:
        """ "greater" if a greater value is better, "less" if it is worse, "" for a figure without a gate."""
        if self.at_least is not None:
            return "greater"
        return "" if self.at_most is None else "less"

    @property
    def bound(self) -> str:
        """The gate as text; "" for a figure without a gate."""
        unit = f" x {self.baseline}" if self.in_baselines else ""
        if self.at_least is not None:
            return f">= {self.at_least:,}{unit}"
        return "" if self.at_most is None else f"<= {self.at_most:,}{unit}"

    def met(self, result: Result) -> bool:
        """Whether the figure keeps its gate. A figure without a gate always does."""
        if not self.bound:
            return True
        value, scale = self.value(result), self.baseline_value(result) if self.in_baselines else 1
        if value is None or scale is None:
            return False
        # NaN fails both comparisons, so it misses
        return (self.at_least is None or value >= self.at_least * scale) and (
            self.at_most is None or value <= self.at_most * scale
        )


def _number(result: Result, key: str) -> float | None:
    found: Any = result
    for step in key.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def missed(figures: Sequence[Figure], result: Result) -> list[str]:
    """A line for each missed gate: the figure, its value and the gate."""
    return [
        f"{figure.key}: {shown(figure.value(result))} {figure.unit}, the gate is {figure.bound}".replace("  ", " ")
        for figure in figures
        if not figure.met(result)
    ]


def shown(value: float | None) -> str:
    """A value as text; "missing" for None."""
    if value is None:
        return "missing"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:,.2f}"
