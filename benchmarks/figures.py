"""Figures and gates: one row of data per figure. The tables, the page and the verdict are made from these rows.

A gate is a bound that must hold. A figure that is missing or not a number misses its gate, so a benchmark that measured
nothing never passes.
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
        key: its place in the JSON; a dot leads into an object.
        unit: the unit of its value.
        meaning: one line that explains it.
        at_least: lower bound. Defaults to None: no bound.
        at_most: upper bound. Defaults to None: no bound.
    """

    key: str
    unit: str
    meaning: str
    at_least: float | None = None
    at_most: float | None = None

    def value(self, result: Result) -> float | None:
        """The figure in `result`; None if it is absent or not a number."""
        found: Any = result
        for step in self.key.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None

    @property
    def bound(self) -> str:
        """The gate as text, "" without a gate."""
        if self.at_least is not None:
            return f">= {self.at_least:,}"
        return "" if self.at_most is None else f"<= {self.at_most:,}"

    def met(self, result: Result) -> bool:
        """Whether its gate holds; a figure without a gate always does."""
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
    """A value as text."""
    if value is None:
        return "missing"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:,.2f}"
