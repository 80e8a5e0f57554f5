"""Writes a result as a table for the terminal, and as a table of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from benchmarks.figures import Figure, Result, shown


def table(figures: Sequence[Figure], result: Result) -> str:
    """The result as aligned columns for a terminal."""
    rows = [
        (
            figure.key,
            shown(figure.value(result)),
            figure.unit,
            figure.bound,
            _rounds(figure, result),
            _baseline(figure, result),
            figure.measured(result),
            _verdict(figure, result),
        )
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for key, value, unit, *others in rows:
        first = f"{key:<{widths[0]}}  {value:>{widths[1]}} {unit:<{widths[2]}}"
        padded = (f"{text:<{width}}" for text, width in zip(others, widths[3:], strict=True))
        lines.append("  ".join([first, *padded]).rstrip())
    unfit = [f"this machine was not fit to measure: {reason}" for reason in reasons(result)]
    return "\n".join([*lines, "", _surroundings(result), *unfit])


def reasons(result: Result) -> Sequence[str]:
    """Why the machine was not fit to measure. Empty: it was fit, or its fitness was not measured."""
    found: Sequence[str] = result.get("fitness", {}).get("unfit", ())
    return found


def markdown(figures: Sequence[Figure], result: Result | None) -> str:
    """The result as a table for docs/benchmarks.md. Without a result every value is a dash."""
    lines = ["| figure | value | gate | meaning |", "|---|---|---|---|"]
    for figure in figures:
        value = "–" if result is None else f"{shown(figure.value(result))} {figure.unit}"  # noqa: RUF001 - a dash
        lines.append(f"| `{figure.key}` | {value} | {figure.bound} | {figure.meaning} |")
    if result is None:
        return "\n".join([*lines, "", "Not measured yet."])
    unfit = [f"The machine was not fit to measure: {reason}." for reason in reasons(result)]
    return "\n".join([*lines, "", f"Measured on {_surroundings(result)}.", *unfit, *_lengths(figures, result)])


def _lengths(figures: Sequence[Figure], result: Result) -> list[str]:
    """Lines that say how long figures were measured. Figures whose keys begin alike may share a name."""
    keys: dict[str, dict[str, None]] = {}  # the keys for each text, in the order of the figures
    for figure in figures:
        if text := figure.measured(result):
            keys.setdefault(text, {})[f"`{figure.measured_with(result)}`"] = None
    lines = [fill(f"- {text}: {', '.join(names)}.", 120, subsequent_indent="  ") for text, names in keys.items()]
    return ["", "Rounds x what each of them measured:", "", *lines] if lines else []


def write_section(page: Path, name: str, text: str) -> None:
    """Replace the text of section `name` in the file `page`.

    Raises:
        ValueError: the page has no such section; nothing was written.
    """
    start, end = f"<!-- figures: {name} -->\n", f"<!-- end of figures: {name} -->"
    before, found, rest = page.read_text("utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"expected {page} to have the lines {start.strip()} and {end}; nothing was written")
    page.write_text(f"{before}{start}\n{text}\n\n{end}{after}", "utf-8")


def _verdict(figure: Figure, result: Result) -> str:
    if not figure.bound:
        return ""
    return "ok" if figure.met(result) else "MISSED"


def _rounds(figure: Figure, result: Result) -> str:
    spread = figure.spread(result)
    return "" if spread is None else f"rounds {shown(spread['min'])} to {shown(spread['max'])}"


def _baseline(figure: Figure, result: Result) -> str:
    return f"of {figure.baseline} {shown(figure.baseline_value(result))}" if figure.baseline else ""


def _surroundings(result: Result) -> str:
    around = result.get("server") or f"{result['core']} core"
    return (
        f"Python {result['python']}, {around}, {result['cpus']} processors, "
        f"{result['rounds']} rounds{', quick' if result.get('quick') else ''}"
    )
