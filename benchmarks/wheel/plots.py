"""Draws the plots of docs/benchmarks.md as SVG: costs by number of timers, with uniform deadlines.

The costs are those of schedule, of expire, and of a request when 90 % of the timers are cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TITLES = {
    "schedule": "Schedule a timer",
    "expire": "Let a timer expire",
    "cancelled90": "A request, 90 % cancelled",
}
_COLOURS = {
    "wheel, compiled": "#0b6e4f",
    "wheel, pure": "#5fad56",
    "heapq": "#c1292e",
    "kombu": "#f2a541",
    "asyncio": "#235789",
    "uvloop": "#7ea3cc",
    "sched": "#999999",
    "Kafka's structure": "#6b4e9b",
}


def write_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write one plot for each of the three costs. Returns their paths."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "wheel"  # the same figures give the same file
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for what, title in _TITLES.items():
        counts: Mapping[str, Mapping[str, float]] = result["table"][what].get("uniform", {})
        names = [name for name in _COLOURS if any(name in counts[count] for count in counts)]
        height = 0.5 + 0.22 * len(names) * max(len(counts), 1)
        figure, axes = pyplot.subplots(figsize=(7.2, height), layout="constrained")
        width = 0.84 / max(len(names), 1)
        for row, name in enumerate(names):
            places = [at + row * width for at, count in enumerate(counts) if name in counts[count]]
            values = [counts[count][name] for count in counts if name in counts[count]]
            axes.scatter(values, places, s=22, label=name, color=_COLOURS[name])
            for value, place in zip(values, places, strict=True):
                axes.annotate(f"{value:,.0f}", (value, place), (6, -2.5), textcoords="offset points", fontsize=7)
        axes.set_yticks([at + 0.42 - width / 2 for at in range(len(counts))], [f"{count} timers" for count in counts])
        axes.set_ylim(len(counts) - 0.08, -0.12)  # the first one on top
        axes.set_xscale("log")  # marks, because a bar on a logarithmic scale has no zero
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel("nanoseconds of CPU (log), further left is better")
        axes.set_title(f"{title}, deadlines uniform over an hour", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        path = folder / f"wheel-{what}.svg"
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        written.append(path)
    return written
