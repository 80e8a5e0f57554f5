"""Draws the figures as one SVG without a plot library: a mark for stock and a mark for ours, on a logarithmic scale.

A bar would need a zero, which a logarithmic scale does not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_ROWS = (
    ("drain_us.date", "burst of one-shots, µs a job"),
    ("drain_us.interval", "burst of interval jobs, µs a job"),
    ("redis_us", "burst on Redis, µs a job"),
    ("p99_lateness_ms_10k", "p99 lateness at 10,000 jobs/s, ms"),
    ("add_job_ms_50k_due", "worst add_job beside 50,000 due jobs, ms"),
    ("loop_stall_ms_3k", "longest event-loop stall, 3,000 due jobs, ms"),
    ("update_us_1m", "update among 1,000,000 jobs, µs"),
)
_LEFT, _WIDTH, _ROW = 330, 420, 46
_STOCK, _OURS = "#8a8a8a", "#2f6fab"


def write_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `apscheduler.svg` into `folder`. Returns its path."""
    rows = [(text, *_pair(result, key)) for key, text in _ROWS]
    values = [value for _, *pair in rows for value in pair if value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def length(value: float) -> float:
        return _WIDTH * (math.log10(max(value, 10**low)) - low) / max(high - low, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{_ROW * len(rows) + 70}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        '<text x="8" y="20">Further left is better, logarithmic scale</text>',
    ]
    for at, colour, text in ((_LEFT, _STOCK, "stock"), (_LEFT + 70, _OURS, "ours")):
        parts.append(f'<circle cx="{at}" cy="16" r="6" fill="{colour}"/><text x="{at + 12}" y="20">{text}</text>')
    bottom = 36 + _ROW * len(rows)
    for power in range(low, high + 1):
        x = _LEFT + length(10.0**power)
        parts.append(
            f'<path d="M{x:.1f} 32V{bottom}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{bottom + 18}" font-size="11" text-anchor="middle">{10.0**power:,.10g}</text>'
        )
    for number, (text, stock, ours) in enumerate(rows):
        top = 36 + number * _ROW
        parts.append(f'<text x="8" y="{top + 22}">{escape(text)}</text>')
        middle = top + 18
        x, y = _LEFT + length(stock), _LEFT + length(ours)
        parts.append(f'<path d="M{x:.1f} {middle}H{y:.1f}" stroke="#999" stroke-width="2"/>')
        for value, colour in ((stock, _STOCK), (ours, _OURS)):
            place = _LEFT + length(value)
            parts.append(
                f'<circle cx="{place:.1f}" cy="{middle}" r="6" fill="{colour}"/>'
                f'<text x="{place:.1f}" y="{middle - 10}" font-size="11" text-anchor="middle">{value:,.4g}</text>'
            )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "apscheduler.svg"
    path.write_text("\n".join([*parts, "</svg>", ""]), "utf-8")
    return [path]


def _pair(result: Mapping[str, Any], key: str) -> tuple[float, float]:
    found: Any = result
    for step in key.split("."):
        found = found[step]
    return found["stock"], found["ours"]
