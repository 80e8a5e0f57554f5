"""The lateness report as one HTML file with SVG plots. It has no script and loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from retry_topic.spark.jobs.slo import Slo
from wheel_sched.management.wording import instant

_STYLE = """body{font:14px system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.5rem 0 2rem}
td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}.bad{color:#b00020;font-weight:600}svg{width:100%;height:auto}
text{font:11px system-ui,sans-serif;fill:#555}"""
_WIDTH, _HEIGHT, _LEFT, _BELOW = 900, 220, 60, 20
_COLOURS = {"p50": "#2a7de1", "p99": "#e18a2a", "max": "#b00020"}


def page(report: Slo, title: str = "Lateness") -> str:
    """The report as an HTML page."""
    verdict = "met" if report.met else "missed"
    head = (
        f"<h1>{escape(title)}</h1><p>{report.deliveries:,} deliveries. Objective: {report.objective:.3%} "
        f"of them at most {report.target_ms:,} ms late. <b{'' if report.met else ' class=bad'}>{verdict}</b>: "
        f"{report.late:,} were later, {report.early:,} early. {report.burn:.0%} of the error budget is used."
        f"{f' {report.left_out:,} rows were left out.' if report.left_out else ''}</p>"
    )
    parts = [head, _table("All", [report.lateness_ms | {"deliveries": report.deliveries, "late": report.late}], ())]
    if report.hours:
        parts += ["<h2>By hour</h2>", _lines(report.hours), _bars(report.hours)]
    parts += [_table("By topic", report.topics, ("topic",)), _table("By shard", report.shards, ("shard",))]
    parts.append(_table("Worst minutes", report.worst, ("topic", "minute_ms")))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _table(title: str, rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
    if not rows:
        return ""
    names = [*keys, "deliveries", "late", "p50", "p90", "p99", "p999", "max"]
    head = "".join(f"<th>{name.removesuffix('_ms')}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(name, row.get(name))}</td>' for name in names)}</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_ms"):
        return instant(value)
    return escape(f"{value:,}" if isinstance(value, int | float) and name != "shard" else str(value))


def _places(count: int) -> list[float]:
    step = (_WIDTH - _LEFT) / max(count - 1, 1)
    return [_LEFT + number * step for number in range(count)]


def _lines(hours: Sequence[dict[str, Any]]) -> str:
    """A plot of p50, p99 and the maximum of each hour."""
    top = max(1, *(max(row["p99"] or 0, row["max"] or 0) for row in hours))
    places = _places(len(hours))
    drawn = []
    for name, colour in _COLOURS.items():
        points = " ".join(
            f"{x:.1f},{_HEIGHT - (row[name] or 0) / top * (_HEIGHT - 20):.1f}"
            for x, row in zip(places, hours, strict=True)
        )
        drawn.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
    legend = "".join(
        f'<text x="{_LEFT + 10 + 60 * number}" y="12" style="fill:{colour}">{name}</text>'
        for number, (name, colour) in enumerate(_COLOURS.items())
    )
    return _plot("".join(drawn) + legend, f"{top:,} ms", hours)


def _bars(hours: Sequence[dict[str, Any]]) -> str:
    """A plot of the late deliveries of each hour."""
    top = max(1, *(row["late"] for row in hours))
    width = max(1.0, (_WIDTH - _LEFT) / max(len(hours), 1) - 1)
    bars = "".join(
        f'<rect x="{x:.1f}" y="{_HEIGHT - row["late"] / top * (_HEIGHT - 20):.1f}" width="{width:.1f}" '
        f'height="{row["late"] / top * (_HEIGHT - 20):.1f}" fill="#b00020"/>'
        for x, row in zip(_places(len(hours) + 1), hours, strict=False)
    )
    return _plot(bars, f"{top:,} late", hours)


def _plot(drawn: str, top: str, hours: Sequence[dict[str, Any]]) -> str:
    first, last = instant(hours[0]["hour_ms"])[:16], instant(hours[-1]["hour_ms"])[:16]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _BELOW}" role="img"><line x1="{_LEFT}" y1="{_HEIGHT}" x2="{_WIDTH}" '
        f'y2="{_HEIGHT}" stroke="#999"/><text x="0" y="24">{top}</text><text x="0" y="{_HEIGHT}">0</text>{drawn}'
        f'<text x="{_LEFT}" y="{_HEIGHT + 15}">{first}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 15}" text-anchor="end">{last}</text></svg>'
    )
