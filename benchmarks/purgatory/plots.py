"""The two plots of the original benchmark: achieved rate and processor time, by target rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

_COLOURS = {"old": "#c0392b", "new": "#2471a3"}
_STYLES = {"low": ("-", "o"), "high": ("--", "D")}
_TEXTS = {"low": "few time out", "high": "half time out"}

Points = Sequence[Mapping[str, Any]]


def write_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `purgatory-rate.svg` and `purgatory-cpu.svg`. Returns their paths."""
    points: Points = result["points"]
    folder.mkdir(parents=True, exist_ok=True)
    rate, cpu = folder / "purgatory-rate.svg", folder / "purgatory-cpu.svg"
    _plot(points, rate, "Achieved rate", "achieved, thousand requests/s", lambda point: point["achieved"] / 1000)
    _plot(points, cpu, "Processor time", "µs per request (log)", lambda point: point["cpu_us"], log=True)
    return [rate, cpu]


def _plot(
    points: Points, path: Path, title: str, axis: str, value: Callable[[Mapping[str, Any]], float], *, log: bool = False
) -> None:
    """Plot one line for each design and case, through the median of the values at each target rate."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "purgatory"  # the same figures give the same file
    from matplotlib import pyplot
    from matplotlib.ticker import ScalarFormatter

    shown = [point for point in points if point["design"] in _COLOURS and point["core"] == points[0]["core"]]
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    if not log:
        right = max(point["rate"] for point in shown) / 1000
        axes.plot([0, right], [0, right], color="#999999", linewidth=0.8, linestyle=":", label="as asked for")
    for design, case in sorted({(point["design"], point["case"]) for point in shown}):
        runs = [point for point in shown if (point["design"], point["case"]) == (design, case)]
        rates = sorted({point["rate"] for point in runs})
        line, mark = _STYLES[case]
        axes.plot(
            [rate / 1000 for rate in rates],
            [median(value(point) for point in runs if point["rate"] == rate) for rate in rates],
            color=_COLOURS[design],
            linestyle=line,
            marker=mark,
            markersize=6,
            markerfacecolor="white" if case == "high" else _COLOURS[design],
            label=f"{design}, {_TEXTS[case]}",
        )
    axes.set_xlim(left=0)
    if log:
        axes.set_yscale("log")
        axes.set_yticks([5, 10, 20, 50, 100, 200, 500, 1000, 2000])
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.minorticks_off()
        values = [value(point) for point in shown]
        axes.set_ylim(min(values) / 1.3, max(values) * 1.3)
    else:
        axes.set_ylim(bottom=0)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_xlabel("asked for, thousand requests/s")
    axes.set_ylabel(axis)
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
