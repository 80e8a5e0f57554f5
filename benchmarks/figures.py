"""Figures and their gates. The tables, docs/benchmarks.md and the exit code are made from them.

A gate is a bound that a figure must keep. A figure that is missing or not a number misses its gate, so a benchmark that
measured nothing never passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a result.

    Args:
        key: where the value stands in the result; "a.b" is the value `b` in the object `a`.
        unit: the unit of the value.
        meaning: one line that explains the figure.
        at_least: the gate as a lower bound. Defaults to None: no bound.
        at_most: the gate as an upper bound. Defaults to None: no bound.
    """

    key: str
    unit: str
    meaning: str
    at_least: float | None = None
    at_most: float | None = None

    def value(self, result: Result) -> float | None:
        """The value of the figure in `result`; None if it is absent or not a number."""
        found: Any = result
        for step in self.key.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None

    @property
    def bound(self) -> str:
        """The gate as text; "" for a figure without a gate."""
        if self.at_least is not None:
            return f">= {self.at_least:,}"
        return "" if self.at_most is None else f"<= {self.at_most:,}"

    def met(self, result: Result) -> bool:
        """Whether the figure keeps its gate; True for a figure without a gate."""
        if not self.bound:
            return True
        value = self.value(result)
        if value is None:
            return False
        # NaN fails both comparisons, so it misses
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


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
