"""The pictures of the wheel: costs by number of timers, with deadlines uniform over an hour.

The costs are those of schedule, of expire, and of a request when 90 % of the timers are cancelled. One picture has the
timers that people choose between; three have every timer that was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.charts import ChartMark, ChartPanel, Row, RowGroup, Words, dots, lines

_TITLES = {
    "schedule": "Schedule a timer",
    "expire": "Let a timer expire",
    "cancelled90": "A request, 90 % cancelled",
}
_NAMES = ("wheel, compiled", "wheel, pure", "heapq", "kombu", "asyncio", "uvloop", "sched", "Kafka's structure")
_CHOICES = ("wheel, compiled", "heapq", "kombu", "wheel, pure", "Kafka's structure")
_COUNTS = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1m": 1_000_000}

Costs = Mapping[str, Mapping[str, float]]


def write_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `wheel.svg` and a picture of every timer for each of the three costs. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    costs: dict[str, Costs] = {what: result["table"][what].get("uniform", {}) for what in _TITLES}
    texts = {"wheel": _choices(costs)} | {f"wheel-{what}": _all(what, costs[what]) for what in _TITLES}
    for name, text in texts.items():
        (folder / f"{name}.svg").write_text(text, "utf-8")
    return [folder / f"{name}.svg" for name in texts]


def _choices(costs: Mapping[str, Costs]) -> str:
    words = Words(
        title="Timers: what one costs, by how many are pending",
        description="Three panels with lines of nanoseconds by the number of pending timers. Lower is better.",
        axis="nanoseconds of CPU, lower is better",
        legend=_CHOICES,
        across="pending timers",
    )
    panels = [
        ChartPanel(
            title,
            {
                series: [(_number(count), values[name]) for count, values in costs[what].items() if name in values]
                for series, name in enumerate(_CHOICES)
                if any(name in values for values in costs[what].values())
            },
        )
        for what, title in _TITLES.items()
    ]
    return lines(words, panels, logs=(True, True), hollow=range(1, len(_CHOICES)))


def _all(what: str, costs: Costs) -> str:
    groups = [
        RowGroup(
            f"{_number(count):,} timers",
            [
                Row(name, [ChartMark(int(not name.startswith("wheel")), values[name], f"{values[name]:,.0f}")])
                for name in _NAMES
                if name in values
            ],
        )
        for count, values in costs.items()
    ]
    words = Words(
        title=f"{_TITLES[what]}, deadlines uniform over an hour",
        description="A mark for each timer and each number of timers. Further left is better.",
        axis="nanoseconds of CPU, further left is better",
        legend=("wheel-sched", "others"),
    )
    return dots(words, groups)


def _number(count: str) -> int:
    return _COUNTS.get(count) or int(count)
