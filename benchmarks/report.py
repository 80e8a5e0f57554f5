"""Writes a result as a table for the terminal, and as a table of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure, Result, shown


def table(figures: Sequence[Figure], result: Result) -> str:
    """The result as aligned columns for a terminal."""
    rows = [
        (figure.key, shown(figure.value(result)), figure.unit, figure.bound, _verdict(figure, result))
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        f"{key:<{widths[0]}}  {value:>{widths[1]}} {unit:<{widths[2]}}  {bound:<{widths[3]}}  {verdict}".rstrip()
        for key, value, unit, bound, verdict in rows
    ]
    return "\n".join([*lines, "", _surroundings(result)])


def markdown(figures: Sequence[Figure], result: Result | None) -> str:
    """The result as a table for docs/benchmarks.md. Without a result every value is a dash."""
    lines = ["| figure | value | gate | meaning |", "|---|---|---|---|"]
    for figure in figures:
        value = "–" if result is None else f"{shown(figure.value(result))} {figure.unit}"  # noqa: RUF001 - a dash
        lines.append(f"| `{figure.key}` | {value} | {figure.bound} | {figure.meaning} |")
    return "\n".join([*lines, "", "Not measured yet." if result is None else f"Measured on {_surroundings(result)}."])


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


def _surroundings(result: Result) -> str:
    around = result.get("server") or f"{result['core']} core"
    return (
        f"Python {result['python']}, {around}, {result['cpus']} processors, "
        f"{result['rounds']} rounds{', quick' if result.get('quick') else ''}"
    )
