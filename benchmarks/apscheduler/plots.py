"""The figures as one SVG, stock beside ours on a logarithmic scale; written by hand: nothing need be installed."""

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
_STOCK, _OURS = "#b8b8b8", "#2f6fab"


def write_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `apscheduler.svg` into `folder`; its path."""
    rows = [(text, *_pair(result, key)) for key, text in _ROWS]
    values = [value for _, *pair in rows for value in pair if value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def length(value: float) -> float:
        return _WIDTH * (math.log10(max(value, 10**low)) - low) / max(high - low, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{_ROW * len(rows) + 40}" '
        'font-family="sans-serif" font-size="13">',
        f'<text x="8" y="20">Shorter is better, logarithmic: <tspan fill="{_STOCK}">stock</tspan>, '
        f'<tspan fill="{_OURS}">ours</tspan></text>',
    ]
    for number, (text, stock, ours) in enumerate(rows):
        top = 36 + number * _ROW
        parts.append(f'<text x="8" y="{top + 22}">{escape(text)}</text>')
        for offset, value, colour in ((0, stock, _STOCK), (17, ours, _OURS)):
            width = max(length(value), 1)
            parts.append(
                f'<rect x="{_LEFT}" y="{top + offset}" width="{width:.1f}" height="15" fill="{colour}"/>'
                f'<text x="{_LEFT + length(value) + 5:.1f}" y="{top + offset + 12}" font-size="11">{value:,.2f}</text>'
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
