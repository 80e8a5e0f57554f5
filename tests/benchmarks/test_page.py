"""The two pages of the benchmarks: the page of all figures, and the page for readers that is made from it."""

from __future__ import annotations

import json
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page as readers
from benchmarks import store, wheel
from benchmarks.__main__ import BENCHMARKS
from benchmarks.figures import Figure, missed, shown
from benchmarks.report import markdown, table, write_section
from benchmarks.summary import CAPABILITIES

PAGE, READERS = readers.FIGURES, readers.PAGE
DASH = "–"  # noqa: RUF001 - a dash
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


def test_the_page_has_the_jvms_figures() -> None:
    """The page lists the figures of Kafka's and Netty's wheels as in the code."""
    section = PAGE.read_text("utf-8").partition("<!-- figures: wheel, jvm -->")[2].partition("<!-- end of")[0]
    assert without_values(section) == without_values(markdown(wheel.JVM_FIGURES, None))


def all_figures() -> list[tuple[str, Figure]]:
    """Each figure of the code with the section of the page that has it."""
    found = [(name, figure) for name in BENCHMARKS for figure in import_module(f"benchmarks.{name}").FIGURES]
    return [*found, *(("wheel, jvm", figure) for figure in wheel.JVM_FIGURES)]


def test_every_gated_figure_has_a_value_and_a_missed_one_is_told() -> None:
    """Each figure with a gate has a measured value on the page of all figures, or a dash: it is not measured yet.

    The page for readers has each gate that is missed or not measured, with the value.
    """
    figures = readers.Figures(PAGE.read_text("utf-8"))
    gated = [(section, figure) for section, figure in all_figures() if figure.bound]
    assert len(gated) > 70
    without = [(section, figure) for section, figure in gated if figure.value(figures.result(section)) is None]
    assert {figures.text(f"{section}/{figure.key}") for section, figure in without} <= {DASH}
    said = READERS.read_text("utf-8").partition("<!-- figures: missed gates -->")[2]
    missing = [(section, figure) for section, figure in gated if missed([figure], figures.result(section))]
    assert missing
    for section, figure in missing:
        assert f"| {section} | `{figure.key}` | {figures.text(f'{section}/{figure.key}')} | {figure.bound} |" in said


def test_the_page_for_readers_is_made_from_the_page_of_all_figures(tmp_path: Path) -> None:
    """The tables of the page for readers are those that the program writes, so they are up to date."""
    page = tmp_path / "page.md"
    page.write_text(READERS.read_text("utf-8"), "utf-8")
    for name, text in readers.tables(readers.Figures(PAGE.read_text("utf-8"))).items():
        write_section(page, name, text)
    assert page.read_text("utf-8") == READERS.read_text("utf-8")


def test_the_pictures_are_made_from_the_figures(tmp_path: Path) -> None:
    """Each chart of the repository is the one that the program draws from the page of all figures. One picture of the
    folder is no chart: it is written by hand."""
    for kept in readers.PICTURES.glob("*.json"):
        shutil.copy(kept, tmp_path)
    drawn = readers.draw(readers.Figures(PAGE.read_text("utf-8")), tmp_path)
    assert {path.name for path in drawn} == {path.name for path in readers.PICTURES.glob("*.svg")} - {"choose.svg"}
    for path in drawn:
        assert path.read_text("utf-8") == (readers.PICTURES / path.name).read_text("utf-8"), path.name


def numbers(text: str) -> list[str]:
    """The numbers in a text that a unit or the ratio sign "x" follows, or that have a thousands separator."""
    unit = r"(?:\u00a0| )(?:x|ns|µs|ms|s|bytes|MB)\b"
    return re.findall(rf"(?<![\d.,])(\d[\d,.]*(?={unit})|\d{{1,3}}(?:,\d{{3}})+)(?![\d])", text)


def test_every_number_of_the_text_is_a_measured_one() -> None:
    """Each number with a unit in the sentences about a capability is also on the page of all figures."""
    text = READERS.read_text("utf-8").partition("## Timers")[2]
    sentences = re.sub(r"<!-- figures.*?<!-- end of figures[^>]*>", "", text, flags=re.DOTALL)
    said = numbers(sentences)
    measured = PAGE.read_text("utf-8")
    assert len(said) > 40
    assert [one for one in said if not re.search(rf"(?<![\d.,]){re.escape(one)}(?![\d.,]\d)", measured)] == []


def test_each_capability_has_one_table_one_picture_and_its_losses() -> None:
    """Each part of the page has a table, a picture and a list of what is worse than a peer or a goal."""
    parts = READERS.read_text("utf-8").split("\n## ")[2:-1]
    assert len(parts) == len(CAPABILITIES)
    for part, name in zip(parts, CAPABILITIES, strict=True):
        assert part.count("<!-- figures: ") == part.count(f"<!-- figures: {name} -->") == 1
        assert len(re.findall(r"!\[", part)) == 1
        assert part.partition("\nWhere we lose:\n")[2].count("\n- ") >= 2


def test_every_value_of_ours_that_is_worse_is_a_loss_of_the_text() -> None:
    """Where a ratio is below 1, the list of losses has the ratio or our value."""
    figures = readers.Figures(PAGE.read_text("utf-8"))
    parts = READERS.read_text("utf-8").split("\n## ")[2:-1]
    unsaid = []
    for part, rows in zip(parts, CAPABILITIES.values(), strict=True):
        losses = part.partition("Where we lose:")[2]
        for row in rows:
            ratio = readers.ratio(figures, row)
            value = figures.text(row.ours).split()[0] if row.ours else ratio
            if ratio[0].isdigit() and float(ratio.split()[0].replace(",", "")) < 1 and value not in losses:
                unsaid.append((row.measured, ratio))
    assert unsaid == []


def test_the_values_of_apschedulers_picture_are_the_measured_ones() -> None:
    """The JSON file beside the picture has the values of the page. The times in it that are not on the page have
    nearly the page's ratios: a ratio of medians is not the median of the ratios."""
    kept: dict[str, Any] = json.loads((readers.PICTURES / "apscheduler.json").read_text("utf-8"))
    figures = readers.Figures(PAGE.read_text("utf-8"))
    for key, pair in kept.items():
        for side in ("stock", "ours") if key not in ("drain_us", "redis_us") else ():
            assert shown(float(pair[side])) == figures.text(f"apscheduler/{key}.{side}").split()[0]
    ratios = {
        "drain_date_vs_stock": kept["drain_us"]["date"],
        "drain_interval_vs_stock": kept["drain_us"]["interval"],
        "redis_scheduler_vs_stock": kept["redis_us"],
    }
    for key, pair in ratios.items():
        assert pair["stock"] / pair["ours"] == pytest.approx(figures.value(f"apscheduler/{key}"), rel=0.05)


def test_the_purgatorys_picture_shows_the_rates_of_the_page() -> None:
    """For each design, the picture has the page's rate, and the design achieves at least 98 % of this rate.

    The picture may also have a greater rate that the design achieves. The rate is searched several times, and the page
    has the median of the rates found.
    """
    points = json.loads((readers.PICTURES / "purgatory.json").read_text("utf-8"))
    figures = readers.Figures(PAGE.read_text("utf-8"))
    for design in ("new", "old"):
        for case in ("low", "high"):
            runs = [point for point in points if (point["design"], point["case"]) == (design, case)]
            achieved = {point["rate"] for point in runs if point["achieved"] >= 0.98 * point["rate"]}
            assert figures.value(f"purgatory/{design}_{case}_rate") in (achieved or {0})


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
