"""A strip of time as SVG, with a mark for each run. It is made on the server, and needs no JavaScript."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

_WIDTH, _HEIGHT, _LEFT = 560, 44, 6


def strip(times_ms: Sequence[int], since_ms: int, until_ms: int, labels: Sequence[str], about: str) -> Markup:
    """A strip from one moment to another.

    Args:
        times_ms: the moments to mark, in epoch ms. Those outside of the strip are left out.
        since_ms: where the strip begins.
        until_ms: where it ends.
        labels: texts below the strip, at equal distances, the first at its begin and the last at its end.
        about: what the strip shows, in words, for people who cannot see it.
    """
    inner, length = _WIDTH - 2 * _LEFT, max(1, until_ms - since_ms)
    places = sorted({(at_ms - since_ms) * inner // length for at_ms in times_ms if since_ms <= at_ms <= until_ms})
    marks = "".join(f'<rect x="{_LEFT + place}" y="4" width="2" height="18"/>' for place in places)
    ticks = []
    for number, label in enumerate(labels):
        x = _LEFT + inner * number / max(1, len(labels) - 1)
        anchor = "start" if number == 0 else "end" if number == len(labels) - 1 else "middle"
        ticks.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="22" y2="28"/>'
            f'<text class="label" x="{x:.1f}" y="41" text-anchor="{anchor}">{escape(label)}</text>'
        )
    return Markup(  # noqa: S704  # made of numbers and escaped texts
        f'<svg class="chart strip" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{escape(about)}"><line class="grid" x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="22" y2="22"/>'
        f'<g class="bar">{marks}</g>{"".join(ticks)}</svg>'
    )
