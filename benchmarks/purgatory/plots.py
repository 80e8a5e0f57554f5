"""Draws our measurements as the two pictures that Kafka's own purgatory benchmark has.

One picture shows the achieved rate, the other the processor time, both by the rate that was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.charts import ChartPanel, Words, lines

_DESIGNS = {"new": "wheel-sched", "old": "old design"}
_CASES = {"low": "few time out", "high": "half time out"}
_SERIES = [(design, case) for design in _DESIGNS for case in _CASES]
_ASKED = len(_SERIES)  # the number of the line "as asked for"
_HOLLOW = range(1, len(_SERIES))  # hollow, because the marks of several series are at one place
_DASHED = [number for number, (_, case) in enumerate(_SERIES) if case == "high"]

Points = Sequence[Mapping[str, Any]]


def write_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the pictures, and `purgatory.json` with what they show. Returns the paths of the pictures."""
    points = result["points"]
    shown = [one for one in points if one["design"] in _DESIGNS and one["core"] == points[0]["core"]]
    folder.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(f"  {json.dumps(point)}" for point in _medians(shown))
    (folder / "purgatory.json").write_text(f"[\n{rows}\n]\n", "utf-8")
    return draw(folder)


def draw(folder: Path) -> list[Path]:
    """Draw `purgatory-rate.svg` and `purgatory-cpu.svg` from the `purgatory.json` of `folder`. Returns their paths."""
    points: Points = json.loads((folder / "purgatory.json").read_text("utf-8"))
    names = [f"{_DESIGNS[design]}, {_CASES[case]}" for design, case in _SERIES]
    asked = [(0.0, 0.0), *((point["rate"] / 1000, point["rate"] / 1000) for point in points)]
    rate = lines(
        Words(
            title="Purgatory: the rate achieved, by the rate asked for",
            description="Lines of thousand requests a second. A line on the diagonal means that the design keeps up.",
            axis="achieved, thousand requests a second",
            legend=[*names, "as asked for"],
            across="asked for, thousand requests a second",
        ),
        [ChartPanel("", {_ASKED: sorted(asked), **_lines(points, "achieved", 1000)})],
        logs=(False, False),
        dashed=_DASHED,
        hollow=_HOLLOW,
        bare=[_ASKED],
    )
    cpu = lines(
        Words(
            title="Purgatory: processor time of a request, by the rate asked for",
            description="Lines of µs by thousand requests a second. Lower is better.",
            axis="µs of processor time per request",
            legend=names,
            across="asked for, thousand requests a second",
        ),
        [ChartPanel("", _lines(points, "cpu_us", 1))],
        logs=(False, True),
        dashed=_DASHED,
        hollow=_HOLLOW,
    )
    written = []
    for name, text in (("rate", rate), ("cpu", cpu)):
        path = folder / f"purgatory-{name}.svg"
        path.write_text(text, "utf-8")
        written.append(path)
    return written


def _medians(points: Points) -> list[dict[str, Any]]:
    """One row for each design, case and rate, with the medians over its runs."""
    keys = sorted({(point["design"], point["case"], point["rate"]) for point in points})
    rows = []
    for key in keys:
        runs = [point for point in points if (point["design"], point["case"], point["rate"]) == key]
        values = {name: round(median(run[name] for run in runs), 2) for name in ("achieved", "cpu_us")}
        rows.append(dict(zip(("design", "case", "rate"), key, strict=True)) | values)
    return rows


def _lines(points: Points, name: str, unit: float) -> dict[int, list[tuple[float, float]]]:
    found = {
        number: [
            (point["rate"] / 1000, point[name] / unit) for point in points if (point["design"], point["case"]) == key
        ]
        for number, key in enumerate(_SERIES)
    }
    return {number: sorted(line) for number, line in found.items() if line}
