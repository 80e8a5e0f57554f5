"""Makes charts as SVG on the server, so they need no JavaScript. The style sheet has their colours, light and dark.

Each chart has a text for screen readers. No chart has an attribute `style`: the Content-Security-Policy forbids it.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from wheel_sched.management.wording import span

_WIDTH, _HEIGHT = 120, 28


def sparkline(values: Sequence[float], about: str) -> Markup:
    """A small bar chart without axes, such as counts per hour. The last value stands on the right.

    Args:
        values: the heights of the bars, at least one, none negative.
        about: what the chart shows, in words. The function adds the greatest and the last value.
    """
    greatest = max(values, default=0)
    step = _WIDTH / max(len(values), 1)
    bars = "".join(
        f'<rect x="{number * step:.1f}" width="{max(step - 1, 1):.1f}" y="{_HEIGHT - height:.1f}" '
        f'height="{height:.1f}"/>'
        for number, value in enumerate(values)
        if (height := 0 if not greatest else max(value * (_HEIGHT - 2) / greatest, 1 if value else 0))
    )
    text = f"{about}: at most {greatest:g}, last {values[-1] if values else 0:g}"
    return _svg("spark", _WIDTH, _HEIGHT, text, f'<g class="bar">{bars}</g>')


def histogram(rows: Sequence[tuple[str, int]], about: str) -> Markup:
    """Horizontal bars with labels and counts.

    Args:
        rows: label and count of each bar.
        about: what the chart shows, in words.
    """
    greatest, width, line, left = max((count for _, count in rows), default=0), 420, 20, 110
    parts = []
    for number, (label, count) in enumerate(rows):
        top = number * line
        length = 0 if not greatest else count * (width - left - 70) / greatest
        parts.append(
            f'<text x="{left - 8}" y="{top + 14}" class="label" text-anchor="end">{escape(label)}</text>'
            f'<rect class="bar" x="{left}" y="{top + 3}" width="{max(length, 1 if count else 0):.1f}" height="14"/>'
            f'<text x="{left + length + 6:.1f}" y="{top + 14}">{count:,}</text>'
        )
    text = about + ": " + "; ".join(f"{label} {count:,}" for label, count in rows)
    return _svg("histogram", width, max(len(rows) * line, line), text, "".join(parts))


def lateness_rows(counts: Sequence[tuple[int | None, int]]) -> list[tuple[str, int]]:
    """The rows of a histogram of lateness; empty when all counts are 0.

    Args:
        counts: upper bound in ms and count of each bar. The bound None means later than the bounds before. The bars
            after the last one with a count are left out.
    """
    last = max((number for number, (_, count) in enumerate(counts) if count), default=-1)
    return [
        (f"up to {span(bound_ms)}" if bound_ms is not None else "later", count)
        for bound_ms, count in counts[: last + 1]
    ]


def curve(
    points: Sequence[tuple[float, float]],
    about: str,
    *,
    x_label: str,
    y_label: str,
    band: Sequence[tuple[float, float]] = (),
) -> Markup:
    """A line through points (x, y), with labelled axes, and a band around the line if `band` is given.

    Args:
        points: at least two points, in rising order of x.
        about: what the chart shows, in words.
        x_label: what x means, with its unit.
        y_label: what y means, with its unit.
        band: the lower and upper edge at each point, such as the spread of jitter. Defaults to none.
    """
    width, height, left, bottom, top = 560, 240, 64, 34, 12
    xs, ys = [x for x, _ in points], [y for _, y in points] + [y for pair in band for y in pair]
    least_x, most_x, most_y = min(xs), max(xs), nice_above(max(ys, default=1) or 1)

    def at(x: float, y: float) -> str:
        across = left + (x - least_x) * (width - left - 12) / ((most_x - least_x) or 1)
        return f"{across:.1f},{height - bottom - y * (height - bottom - top) / most_y:.1f}"

    shape = ""
    if band:
        there = [at(x, high) for x, (_, high) in zip(xs, band, strict=True)]
        back = [at(x, low) for x, (low, _) in zip(reversed(xs), reversed(band), strict=True)]
        shape = f'<polygon class="band" points="{" ".join([*there, *back])}"/>'
    line = f'<polyline class="line" points="{" ".join(at(x, y) for x, y in points)}"/>'
    heights = [(y, height - bottom - y * (height - bottom - top) / most_y) for y in (most_y * n / 4 for n in range(5))]
    ticks = "".join(
        f'<text x="{left - 6}" y="{place + 4:.1f}" text-anchor="end">{y:g}</text>'
        f'<line class="grid" x1="{left}" x2="{width - 12}" y1="{place:.1f}" y2="{place:.1f}"/>'
        for y, place in heights
    )
    ends = "".join(
        f'<text x="{at(x, 0).split(",")[0]}" y="{height - bottom + 16}" text-anchor="middle">{x:g}</text>'
        for x in dict.fromkeys((least_x, (least_x + most_x) // 2, most_x))
    )
    words = (
        f'<text x="{(width + left) / 2:.0f}" y="{height - 4}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text x="{left}" y="{top - 2}" class="label">{escape(y_label)}</text>'
    )
    return _svg("curve", width, height, about, ticks + shape + line + ends + words)


def nice_above(value: float) -> float:
    """The end of an axis: the smallest number not below the value that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** len(str(int(value))) if value >= 1 else 1.0
    while power / 10 >= value:
        power /= 10
    return next(step for step in (power / 10, power / 5, power / 2, power) if step >= value)


def _svg(kind: str, width: int, height: int, about: str, inside: str) -> Markup:
    return Markup(  # noqa: S704  # `inside` is made of numbers and escaped texts
        f'<svg class="chart {kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(about)}">{inside}</svg>'
    )
