"""Scales, colours and shapes of the benchmark pictures. This module writes SVG without a plot library.

A picture has a title and a description for screen readers, text that can be selected, and two sets of colours: the
reader's light or dark scheme chooses one. Each series has a colour and a shape of its own. A character is assumed to be
0.62 of the font size wide, as in a wide sans-serif font.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from xml.sax.saxutils import escape

_CHARACTER = 0.62
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
# the first series is ours
_LIGHT = ("#0b6e4f", "#b3261e", "#1f5fbf", "#8a5a00", "#7a3e9d", "#00707f", "#a8336f", "#57606a")
_DARK = ("#4cc79a", "#ff8a80", "#7db3ff", "#e6b450", "#c79bf0", "#4dc4d3", "#f08fc0", "#adb5bd")
# the outlines of the shapes around the place 0 0, in the order of the series
_SHAPES = (
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",  # circle
    "M-4.5 -4.5h9v9h-9z",  # square
    "M0 -6.5l6.5 6.5l-6.5 6.5l-6.5 -6.5z",  # diamond
    "M0 -6l6 10.5h-12z",  # triangle
    "M0 6l6 -10.5h-12z",  # triangle, point down
    "M-2 -6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",  # plus
    "M-3 -5.8l3 3l3 -3l2.8 2.8l-3 3l3 3l-2.8 2.8l-3 -3l-3 3l-2.8 -2.8l3 -3l-3 -3z",  # cross
    "M-3 -5.2h6l3 5.2l-3 5.2h-6l-3 -5.2z",  # hexagon
)
_PLAIN = {"bg": ("#ffffff", "#0d1117"), "ink": ("#1f2328", "#e6edf3"), "soft": ("#57606a", "#a5adb6")}
_GRID = ("#d8dee4", "#30363d")
_DECADE = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to places (pixels) between `start` and `end`.

    Args:
        ticks: the values that are labelled, in rising order. The first and the last are the ends of the scale.
        start: the place of the first tick.
        end: the place of the last tick.
        log: whether equal ratios have equal lengths. Defaults to False: equal differences do.
    """

    ticks: Sequence[float]
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of `value`.

        Raises:
            ValueError: the value is outside the scale, so a mark would be cut off.
        """
        low, high = self.ticks[0], self.ticks[-1]
        if not low <= value <= high:
            raise ValueError(f"expected a value from {low:g} to {high:g}, got {value!r}; nothing was drawn")
        share = math.log(value / low) / math.log(high / low) if self.log else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def linear(values: Iterable[float], start: float, end: float, spacing: float) -> Scale:
    """A scale from zero to at least the greatest value. The step between two ticks is 1, 2 or 5 times a power of ten.

    Args:
        values: the values that are drawn, above zero.
        start: the place of zero.
        end: the place of the last tick.
        spacing: the least distance between two ticks.
    """
    top = max(values)
    most = abs(end - start) / spacing
    step = next(step for step in _rounds(top / most / 10) if math.ceil(top / step) <= most)
    return Scale([step * number for number in range(math.ceil(top / step) + 1)], start, end)


def logarithmic(values: Iterable[float], start: float, end: float, spacing: float) -> Scale:
    """A logarithmic scale that holds the values. Ticks are 1, 2 and 5 times powers of ten.

    If such ticks would be closer to each other than `spacing`, the powers of ten are the only ticks.

    Args:
        values: the values that are drawn.
        start: the place of the first tick.
        end: the place of the last tick.
        spacing: the least distance between two ticks at 1, 2 and 5 times powers of ten.

    Raises:
        ValueError: a value is not above zero.
    """
    found = list(values)
    low, high = min(found), max(found)
    if low <= 0:
        raise ValueError(f"expected values above zero on a logarithmic scale, got {low!r}; nothing was drawn")
    below, above = math.floor(math.log10(low)), math.ceil(math.log10(high))
    below -= _power(below) > low  # the logarithm is rounded, and can be that of the next power of ten
    above = max(above + (_power(above) < high), below + 1)
    ticks = [_power(exponent, digit) for exponent in range(below, above + 1) for digit in _DECADE]
    first = max(number for number, tick in enumerate(ticks) if tick <= low)
    last = min(number for number, tick in enumerate(ticks) if tick >= high)
    ticks = ticks[first : max(last, first + 1) + 1]
    if abs(end - start) * math.log(2) / math.log(ticks[-1] / ticks[0]) < spacing:
        ticks = [_power(exponent) for exponent in range(below, above + 1)]
    return Scale(ticks, start, end, log=True)


def _rounds(least: float) -> Iterator[float]:
    """Yield 1, 2 and 5 times each power of ten, from the greatest power that is not above `least`."""
    for exponent in count(math.floor(math.log10(least))):
        yield from (_power(exponent, digit) for digit in _DECADE)


def _power(exponent: int, factor: int = 1) -> float:
    """`factor` times ten to the power of `exponent`, without the rounding error of `factor * 0.1`."""
    return float(factor * 10**exponent) if exponent >= 0 else factor / 10**-exponent


def text_width(text: str, size: float) -> float:
    """An upper estimate of the width of a text in pixels."""
    return _CHARACTER * size * len(text)


@dataclass(slots=True)
class Canvas:
    """A picture that is being drawn. Places are in pixels from the upper left corner.

    Args:
        width: the width of the picture.
        height: the height of the picture.
        title: what the picture shows, for screen readers.
        description: what a reader sees in it, for screen readers.
    """

    width: float
    height: float
    title: str
    description: str
    _parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, text: str, *, kind: str = "ink", size: int = 12, anchor: str = "start", more: str = ""
    ) -> None:
        """Write a text. `y` is its base line, `kind` its CSS class, `more` further attributes of its tag."""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" font-size="{size}" text-anchor="{anchor}"{more}>'
            f"{escape(text)}</text>"
        )

    def tick(self, x: float, y: float, value: float, text: str, anchor: str = "middle") -> None:
        """Write the label of a tick."""
        self.text(x, y, text, kind="soft", size=11, anchor=anchor, more=f' data-tick="{value:.10g}"')

    def grid(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a thin line behind the marks."""
        self._parts.append(f'<path class="grid" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')

    def curve(self, series: int, places: Sequence[tuple[float, float]], *, dashed: bool = False) -> None:
        """Draw a line through the places of a series."""
        way = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        self._parts.append(f'<path class="line l{series}" d="M{way}"{dash}/>')

    def mark(self, series: int, x: float, y: float, note: str = "", *, hollow: bool = False) -> None:
        """Draw the shape of a series; `note` is shown when the pointer is over it.

        A hollow shape is larger, so that a filled one at the same place is seen inside it.
        """
        inside = f"><title>{escape(note)}</title></path>" if note else "/>"
        kind, size = (f"hollow l{series}", " scale(1.35)") if hollow else (f"m{series}", "")
        place = f"translate({x:.1f} {y:.1f}){size}"
        self._parts.append(f'<path class="{kind}" transform="{place}" d="{_SHAPES[series]}"{inside}')

    def bar(self, series: int, x1: float, x2: float, y: float, thickness: float, note: str) -> None:
        """Draw a bar from `x1` to `x2` with its upper edge at `y`; `note` is shown when the pointer is over it."""
        self._parts.append(
            f'<rect class="m{series}" x="{x1:.1f}" y="{y:.1f}" width="{x2 - x1:.1f}" height="{thickness:.1f}">'
            f"<title>{escape(note)}</title></rect>"
        )

    def axis(self, letter: str, scale: Scale) -> None:
        """Begin the SVG group with the ticks of an axis; `letter` is "x" or "y". `end_axis` ends the group."""
        self._parts.append(f'<g data-axis="{letter}" data-scale="{"log" if scale.log else "linear"}">')

    def end_axis(self) -> None:
        """End the SVG group that `axis` began."""
        self._parts.append("</g>")

    def svg(self) -> str:
        """The picture as SVG text. The same drawing calls give the same text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" height="{self.height:.0f}" '
            f'viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" aria-labelledby="title desc" '
            f'font-family="{_FONT}">'
        )
        named = (
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="desc">{escape(self.description)}</desc>',
            f"<style>{_style()}</style>",
            '<rect class="bg" width="100%" height="100%"/>',
        )
        return "\n".join([head, *named, *self._parts, "</svg>", ""])


def _style() -> str:
    def rules(scheme: int) -> str:
        plain = "".join(f".{name}{{fill:{colours[scheme]}}}" for name, colours in _PLAIN.items())
        series = "".join(
            f".m{number}{{fill:{colour};stroke:{_PLAIN['bg'][scheme]}}}.l{number}{{stroke:{colour}}}"
            for number, colour in enumerate((_LIGHT, _DARK)[scheme])
        )
        return f"{plain}.grid{{stroke:{_GRID[scheme]}}}{series}"

    fixed = ".line{fill:none;stroke-width:2}.hollow{fill:none;stroke-width:1.3}"
    return f"\n{fixed}\n{rules(0)}\n@media (prefers-color-scheme: dark) {{{rules(1)}}}\n"
