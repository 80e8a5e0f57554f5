"""Compares the ratios of two runs of one benchmark, for example of a quick and of a full run.

`python -m benchmarks NAME --quick --against FILE` prints the comparison. FILE holds what `--json` printed in the other
run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, Result, shown

AGREES_PERCENT = 15.0


class UnusableRunError(ValueError):
    """A file does not hold the JSON of a run. Its text names the file."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A gated ratio in two runs.

    Args:
        key: the key of the figure.
        here: the ratio in this run.
        there: the ratio in the other run.
        here_rounds: the least and the greatest ratio over this run's rounds, as text; "" if it has one value.
        there_rounds: the same of the other run.
    """

    key: str
    here: float
    there: float
    here_rounds: str
    there_rounds: str

    @property
    def percent(self) -> float:
        """By how many percent of the other run's ratio this run's is greater; negative: less."""
        return 100 * (self.here / self.there - 1)

    @property
    def agrees(self) -> bool:
        """Whether the ratios differ by 15 % at most."""
        return abs(self.percent) <= AGREES_PERCENT


def read(file: Path, figures: Sequence[Figure]) -> Result:
    """Read what `--json` printed in an earlier run of the benchmark that has these figures.

    Raises:
        UnusableRunError: the file cannot be read, does not hold a JSON object, or has none of the gated ratios.
    """
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableRunError(f"expected {file} to hold the JSON of a run: {error}") from None
    if not isinstance(found, dict):
        raise UnusableRunError(f"expected {file} to hold the JSON object of a run, got a {type(found).__name__}")
    if all(figure.ratio(found) is None for figure in figures):
        raise UnusableRunError(
            f"expected {file} to hold the JSON of a run of this benchmark, it has none of its ratios"
        )
    return found


def compared(figures: Sequence[Figure], here: Result, there: Result) -> list[Comparison]:
    """The gated ratios that both runs have, in the order of the figures."""
    found = []
    for figure in figures:
        ours, theirs = figure.ratio(here), figure.ratio(there)
        if ours is not None and theirs:
            found.append(Comparison(figure.key, ours, theirs, _rounds(figure, here), _rounds(figure, there)))
    return found


def table(comparisons: Sequence[Comparison]) -> str:
    """The comparisons as a Markdown table, with the rounds of both runs: they tell noise from a difference."""
    lines = [
        "| ratio | this run | its rounds | the other run | its rounds | difference | |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{one.key}` | {shown(one.here)} | {one.here_rounds} | {shown(one.there)} | {one.there_rounds} | "
        f"{one.percent:+.0f} % | {'' if one.agrees else 'differs'} |"
        for one in comparisons
    ]
    agree = sum(one.agrees for one in comparisons)
    return "\n".join([*lines, "", f"{agree} of {len(comparisons)} ratios differ by {AGREES_PERCENT:.0f} % at most."])


def _rounds(figure: Figure, result: Result) -> str:
    spread = figure.spread(result)
    return "" if spread is None or figure.in_baselines else f"{shown(spread['min'])} to {shown(spread['max'])}"
