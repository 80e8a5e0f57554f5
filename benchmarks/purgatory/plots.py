"""The two plots of the original: what was achieved, and what it cost, against what was asked for. Plain SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _TOP, _PLOT_W, _PLOT_H = 720, 420, 70, 40, 440, 320
_COLOURS = {"old": "#c0392b", "new": "#2471a3"}
_DASHES = {"low": "", "high": "6 4"}

Points = Sequence[Mapping[str, Any]]


def write_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `purgatory-rate.svg` and `purgatory-cpu.svg`; where."""
    plots: dict[str, tuple[str, str, Callable[[Mapping[str, Any]], float]]] = {
        "purgatory-rate.svg": ("Achieved rate", "achieved, thousand/s", lambda point: point["achieved"] / 1000),
        "purgatory-cpu.svg": ("Processor time", "µs per request", lambda point: point["cpu_us"]),
    }
    points: Points = result["points"]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (title, axis, value) in plots.items():
        path = folder / name
        path.write_text(_plot(points, title, axis, value), "utf-8")
        written.append(path)
    return written


def _plot(points: Points, title: str, axis: str, value: Callable[[Mapping[str, Any]], float]) -> str:
    shown = [point for point in points if point["design"] in _COLOURS and point["core"] == points[0]["core"]]
    right = max(point["rate"] / 1000 for point in shown)
    top = max(value(point) for point in shown)

    def place(x: float, y: float) -> tuple[float, float]:
        return round(_LEFT + x / right * _PLOT_W, 1), round(_TOP + _PLOT_H - y / top * _PLOT_H, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{title}</text>',
    ]
    for step in range(6):
        x, y = place(right * step / 5, top * step / 5)
        parts += [
            f'<path d="M{_LEFT} {y}h{_PLOT_W}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{top * step / 5:.3g}</text>',
            f'<text x="{x}" y="{_TOP + _PLOT_H + 18}" text-anchor="middle">{right * step / 5:.3g}</text>',
        ]
    parts += [
        f'<text x="{_LEFT + _PLOT_W / 2}" y="{_HEIGHT - 10}" text-anchor="middle">target, thousand requests/s</text>',
        f'<text transform="translate(16 {_TOP + _PLOT_H / 2}) rotate(-90)" text-anchor="middle">{axis}</text>',
    ]
    series = sorted({(point["design"], point["case"]) for point in shown})
    for number, (design, case) in enumerate(series):
        line = sorted((p["rate"], value(p)) for p in shown if (p["design"], p["case"]) == (design, case))
        path = " ".join(f"{'L' if place_ else 'M'}{x} {y}" for place_, (x, y) in _numbered(line, place))
        style = f'fill="none" stroke="{_COLOURS[design]}" stroke-width="2" stroke-dasharray="{_DASHES[case]}"'
        y = _TOP + 14 + 20 * number
        x = _LEFT + _PLOT_W + 20
        parts += [
            f'<path d="{path}" {style}/>',
            f'<path d="M{x} {y}h28" {style}/><text x="{x + 36}" y="{y + 4}">{design}, {case} time-outs</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def _numbered(
    line: list[tuple[int, float]], place: Callable[[float, float], tuple[float, float]]
) -> list[tuple[int, tuple[float, float]]]:
    return [(number, place(rate / 1000, value)) for number, (rate, value) in enumerate(line)]
