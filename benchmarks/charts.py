"""The three kinds of benchmark pictures: marks in rows, bars in rows, and lines in panels.

Bars begin at zero, so their scale is linear. A logarithmic scale has no zero, so it has marks or lines. The label of a
logarithmic axis ends with "log scale".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.svg import Canvas, Scale, linear, logarithmic, text_width

_WIDTH = 840
_EDGE, _HEADING, _LINE, _GAP = 12, 24, 18, 8
_PANEL_HEIGHT, _PANEL_GAP, _PANEL_LEFT, _PANEL_RIGHT = 270, 56, 64, 40
_ACROSS, _UP = 62, 22  # with these distances between two ticks, no label touches the next one
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A value that a row shows as a mark or as a bar.

    Args:
        series: the number of its series in the legend, from 0.
        value: the value on the axis.
        text: the value as it is written beside the mark or bar.
    """

    series: int
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a picture. Its name is at the left; each of its marks or bars has a line of its own."""

    name: str
    marks: Sequence[ChartMark]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows below a heading. The heading "" is not drawn."""

    heading: str
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """A panel of lines. `lines` has the points (x, y) of each line, by the number of its series in the legend."""

    heading: str
    lines: Mapping[int, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Words:
    """The texts of a picture.

    Args:
        title: what the picture shows, for screen readers. It is also written at the top of the picture.
        description: how to read the picture, for screen readers. The values are appended to it.
        axis: the label of the axis of the values, with its unit.
        legend: the names of the series, in their order.
        across: the label of the horizontal axis of panels. Defaults to "", for a picture of rows.
    """

    title: str
    description: str
    axis: str
    legend: Sequence[str]
    across: str = ""


def number_text(value: float) -> str:
    """A number as text, with commas between thousands."""
    return f"{value:,.10g}"


def time_text(seconds: float) -> str:
    """A time as text, in the largest unit in which it is at least 1: 0.02 is "20 ms"."""
    size, unit = next((one for one in _TIMES if seconds >= one[0] * (1 - 1e-9)), _TIMES[-1])
    return f"{seconds / size:,.6g} {unit}"


def dots(words: Words, groups: Sequence[RowGroup], tick_text: Callable[[float], str] = number_text) -> str:
    """Draw marks in rows on a logarithmic scale; smaller values are further left. Returns SVG text."""
    return _rows(words, groups, logarithmic, tick_text, bars=False)


def bars(words: Words, groups: Sequence[RowGroup], tick_text: Callable[[float], str] = number_text) -> str:
    """Draw bars in rows, from zero on a linear scale. Returns SVG text."""
    return _rows(words, groups, linear, tick_text, bars=True)


def _rows(
    words: Words,
    groups: Sequence[RowGroup],
    scale_of: Callable[[Sequence[float], float, float, float], Scale],
    tick_text: Callable[[float], str],
    *,
    bars: bool,
) -> str:
    rows = [row for group in groups for row in group.rows]
    marks = [mark for row in rows for mark in row.marks]
    left = 2 * _EDGE + max(text_width(name, 12) for name in (*(r.name for r in rows), *(g.heading for g in groups)))
    right = _WIDTH - 2 * _EDGE - max(text_width(mark.text, 11) for mark in marks)
    scale = scale_of([mark.value for mark in marks], left + _EDGE, right, _ACROSS)
    headings = sum(bool(group.heading) for group in groups)
    top = _below_legend(words)
    bottom = top + 2 * _EDGE + headings * _HEADING + len(marks) * _LINE + len(rows) * _GAP
    description = f"{words.description} {_told(words, groups)}"
    canvas = Canvas(_WIDTH, bottom + 56, words.title, description)
    _head(canvas, words)
    canvas.axis("x", scale)
    for value in scale.ticks:
        canvas.grid(scale.at(value), top + _EDGE, scale.at(value), bottom)
        canvas.tick(scale.at(value), bottom + 18, value, tick_text(value))
    canvas.end_axis()
    canvas.text((left + right) / 2, bottom + 42, _axis(words.axis, scale), kind="soft", anchor="middle")
    y = top + 2 * _EDGE
    for group in groups:
        if group.heading:
            canvas.text(_EDGE, y + 12, group.heading)
            y += _HEADING
        for row in group.rows:
            canvas.text(left, y + len(row.marks) * _LINE / 2 + 4, row.name, kind="soft", anchor="end")
            for mark in row.marks:
                _mark(canvas, scale, mark, y, f"{row.name}, {words.legend[mark.series]}: {mark.text}", bars=bars)
                y += _LINE
            y += _GAP
    return canvas.svg()


def _mark(canvas: Canvas, scale: Scale, mark: ChartMark, y: float, note: str, *, bars: bool) -> None:
    x = scale.at(mark.value)
    if bars:
        canvas.bar(mark.series, scale.start, x, y + 2, _LINE - 4, note)
    else:
        canvas.mark(mark.series, x, y + _LINE / 2, note)
    canvas.text(x + 10, y + _LINE / 2 + 4, mark.text, size=11)


def _told(words: Words, groups: Sequence[RowGroup]) -> str:
    """The values of all rows as sentences, for screen readers."""
    sentences = []
    for group in groups:
        rows = [
            f"{row.name}, {', '.join(f'{words.legend[mark.series]} {mark.text}' for mark in row.marks)}"
            for row in group.rows
        ]
        sentences.append(f"{group.heading}: {'; '.join(rows)}." if group.heading else f"{'; '.join(rows)}.")
    return " ".join(sentences)


def _told_panel(words: Words, panel: ChartPanel) -> str:
    """The values of a panel as a sentence, for screen readers."""
    told = [
        f"{words.legend[series]}, {', '.join(f'{number_text(y)} at {number_text(x)}' for x, y in line)}"
        for series, line in panel.lines.items()
    ]
    return f"{panel.heading}: {'; '.join(told)}." if panel.heading else f"{'; '.join(told)}."


def lines(
    words: Words,
    panels: Sequence[ChartPanel],
    *,
    logs: tuple[bool, bool],
    dashed: Sequence[int] = (),
    hollow: Sequence[int] = (),
    bare: Sequence[int] = (),
) -> str:
    """Draw lines in panels side by side, on common scales. Returns SVG text.

    Args:
        words: the texts of the picture.
        panels: the panels from left to right.
        logs: whether the horizontal and the vertical axis are logarithmic.
        dashed: the series whose line is dashed. Defaults to none.
        hollow: the series whose marks are hollow and larger, so that others at the same place are seen inside them.
            Defaults to none.
        bare: the series that have a line and no marks. Defaults to none.
    """
    places = [place for panel in panels for line in panel.lines.values() for place in line]
    told = " ".join(_told_panel(words, panel) for panel in panels)
    width = (_WIDTH - _PANEL_LEFT - _PANEL_RIGHT - _PANEL_GAP * (len(panels) - 1)) / len(panels)
    top = _below_legend(words) + 54
    bottom = top + _PANEL_HEIGHT
    kinds = [logarithmic if log else linear for log in logs]
    across = kinds[0]([x for x, _ in places], 0, width, _ACROSS)
    up = kinds[1]([y for _, y in places], bottom, top, _UP)
    canvas = Canvas(_WIDTH, bottom + 58, words.title, f"{words.description} {told}")
    _head(canvas, words, dashed=dashed, hollow=hollow, bare=bare)
    canvas.text(_EDGE, top - 32, _axis(words.axis, up), kind="soft")
    for number, panel in enumerate(panels):
        left = _PANEL_LEFT + number * (width + _PANEL_GAP)
        if panel.heading:
            canvas.text(left + width / 2, top - 12, panel.heading, anchor="middle")
        canvas.axis("y", up)
        for value in up.ticks:
            canvas.grid(left, up.at(value), left + width, up.at(value))
            canvas.tick(left - 13, up.at(value) + 4, value, number_text(value), "end")
        canvas.end_axis()
        canvas.axis("x", across)
        for value in across.ticks:
            canvas.tick(left + across.at(value), bottom + 20, value, number_text(value))
        canvas.end_axis()
        # the last series first, so that the first one is on top
        for series, line in sorted(panel.lines.items(), reverse=True):
            drawn = [(left + across.at(x), up.at(y)) for x, y in line]
            canvas.curve(series, drawn, dashed=series in dashed)
            for place, (_, y) in zip(drawn, line if series not in bare else (), strict=False):
                note = f"{words.legend[series]}: {number_text(y)}"
                canvas.mark(series, *place, note, hollow=series in hollow)
    middle = (_PANEL_LEFT + _WIDTH - _PANEL_RIGHT) / 2
    canvas.text(middle, bottom + 44, _axis(words.across, across), kind="soft", anchor="middle")
    return canvas.svg()


def _head(
    canvas: Canvas,
    words: Words,
    dashed: Sequence[int] = (),
    hollow: Sequence[int] = (),
    bare: Sequence[int] = (),
) -> None:
    """Write the title, and below it the legend."""
    canvas.text(_EDGE, 24, words.title, size=15)
    for series, (x, y) in enumerate(_legend(words)):
        if words.across:
            canvas.curve(series, [(x, y - 4), (x + 24, y - 4)], dashed=series in dashed)
        if series not in bare:
            canvas.mark(series, x + 12, y - 4, hollow=series in hollow)
        canvas.text(x + 30, y, words.legend[series])


def _legend(words: Words) -> list[tuple[float, float]]:
    """The places (x, y) in pixels where the entries of the legend begin. Entries that do not fit begin a new line."""
    places = []
    x, y = float(_EDGE), 50.0
    for name in words.legend:
        needed = 30 + text_width(name, 12) + 12
        if x + needed > _WIDTH:
            x, y = float(_EDGE), y + 20
        places.append((x, y))
        x += needed
    return places


def _below_legend(words: Words) -> float:
    """The y in pixels at which the legend ends."""
    return _legend(words)[-1][1] + 6


def _axis(text: str, scale: Scale) -> str:
    return f"{text}, log scale" if scale.log else text
