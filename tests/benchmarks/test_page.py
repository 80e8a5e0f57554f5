"""The tables of docs/benchmarks.md have the figures of the benchmarks."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import store, wheel
from benchmarks.__main__ import BENCHMARKS
from benchmarks.report import markdown, table, write_section

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
AROUND = {"python": "3.13.1", "server": "valkey 9.1.2", "core": "compiled", "cpus": 8, "rounds": 7}

every_benchmark = pytest.mark.parametrize("name", BENCHMARKS)


def without_values(text: str) -> list[list[str]]:
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[row[1], row[3], row[4]] for row in rows]


@every_benchmark
def test_the_page_lists_the_figures_the_benchmark_has(name: str) -> None:
    """The page has the figures' names, gates and meanings as in the code, in the same order."""
    benchmark = import_module(f"benchmarks.{name}")
    section = PAGE.read_text("utf-8").partition(f"<!-- figures: {name} -->")[2].partition("<!-- end of")[0]
    assert without_values(section) == without_values(markdown(benchmark.FIGURES, None))


@every_benchmark
def test_a_result_fills_its_own_section_only(name: str, tmp_path: Path) -> None:
    """If a result is written into the page twice, its section has the figures once, and the other text is unchanged."""
    benchmark = import_module(f"benchmarks.{name}")
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text("utf-8"), "utf-8")
    text = markdown(benchmark.FIGURES, AROUND)
    write_section(page, name, text)
    write_section(page, name, text)
    written = page.read_text("utf-8")
    assert written.count("8 processors") == 1
    start, end = f"<!-- figures: {name} -->", f"<!-- end of figures: {name} -->"
    original = PAGE.read_text("utf-8")
    assert written.partition(start)[0] == original.partition(start)[0]
    assert written.partition(end)[2] == original.partition(end)[2]


def test_the_page_has_the_jvms_figures_and_the_plots_it_shows() -> None:
    """The page lists the figures of Kafka's and Netty's wheels as in the code, and every image exists."""
    text = PAGE.read_text("utf-8")
    section = text.partition("<!-- figures: wheel, jvm -->")[2].partition("<!-- end of")[0]
    assert without_values(section) == without_values(markdown(wheel.JVM_FIGURES, None))
    shown = re.findall(r"\((images/[^)]+)\)", text)
    assert len(shown) == 6
    assert all((PAGE.parent / image).exists() for image in shown)


def test_every_value_of_the_summary_is_a_measured_one() -> None:
    """Each value in the two tables at the top of the page is also a measured value further below, so they are up to
    date."""
    summary, _, measured = PAGE.read_text("utf-8").partition("## Ours beside theirs")[2].partition("## The store")
    values = [
        value
        for line in summary.splitlines()
        if line.startswith("| ") and not line.startswith("| part")
        for value in re.findall(r"\d[\d,.]*", "|".join(line.split("|")[3:]))
    ]
    assert len(values) > 40
    assert [value for value in values if not re.search(rf"(?<![\d.,]){re.escape(value)}(?![\d.,])", measured)] == []


def test_a_page_without_the_section_is_left_alone(tmp_path: Path) -> None:
    """If a page has no section for a benchmark, the error names the section, and the page does not change."""
    page = tmp_path / "page.md"
    page.write_text("# A page\n", "utf-8")
    with pytest.raises(ValueError, match="figures: store"):
        write_section(page, "store", "text")
    assert page.read_text("utf-8") == "# A page\n"


def test_the_table_marks_a_missed_gate() -> None:
    """The line of a missed gate ends with MISSED."""
    text = table(store.FIGURES, {**AROUND, "schedule_vs_zadd": 0.5, "bytes_per_message": 250})
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert lines["schedule_vs_zadd"].endswith("MISSED")
    assert lines["bytes_per_message"].endswith("ok")
