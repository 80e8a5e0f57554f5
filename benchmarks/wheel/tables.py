"""Writes the full table of the wheel benchmark in Markdown: one row per measured timer, one column per count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WHAT = {"schedule": "Schedule", "expire": "Expire", "cancelled90": "90 % cancelled, per request"}


def full_table(result: Mapping[str, Any]) -> str:
    """The table of nanoseconds. A dash: the row's timer cannot be measured in this column, or would take too long."""
    parts = []
    for what, title in _WHAT.items():
        for mix, counts in result["table"][what].items():
            names = list(dict.fromkeys(name for values in counts.values() for name in values))
            lines = [f"| {title}, {mix}, ns | {' | '.join(counts)} |", "|---|" + "---|" * len(counts)]
            for name in names:
                cells = (f"{counts[count][name]:,.0f}" if name in counts[count] else "–" for count in counts)  # noqa: RUF001 - a dash
                lines.append(f"| {name} | {' | '.join(cells)} |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts)
