"""The scales and charts of the benchmark pictures: nothing is cut, ticks are round, and text is escaped."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.apscheduler import plots as apscheduler_plots
from benchmarks.charts import ChartMark, ChartPanel, Row, RowGroup, Words, bars, dots, lines, time_text
from benchmarks.purgatory import plots as purgatory_plots
from benchmarks.svg import Canvas, linear, logarithmic
from benchmarks.wheel import plots as wheel_plots

WORDS = Words("A title", "How it is read.", "ms", ("a", "b <c> & d"))
VALUES = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=8)


@given(VALUES)
@example([999_999_999.9999999])
@example([1e-6, 1_000_000.0000000001])
def test_a_logarithmic_scale_holds_every_value(values: list[float]) -> None:
    """Each value is between the first and the last tick, and greater values have greater places."""
    scale = logarithmic(values, 100, 700, 60)
    places = [scale.at(value) for value in sorted(values)]
    assert all(100 <= place <= 700 for place in places)
    assert places == sorted(places)
    assert len(scale.ticks) >= 2


@given(VALUES)
def test_a_linear_scale_begins_at_zero_and_keeps_its_ticks_apart(values: list[float]) -> None:
    """The scale holds zero and each value, and two ticks are at least as far apart as asked."""
    scale = linear(values, 100, 700, 60)
    assert scale.at(0) == 100
    assert all(100 < scale.at(value) <= 700.0001 for value in values)
    assert all(scale.at(after) - scale.at(before) >= 59.999 for before, after in pairwise(scale.ticks))


def test_a_logarithmic_scale_without_room_has_powers_of_ten_only() -> None:
    """Where ticks at 1, 2 and 5 times powers of ten would be too close, only the powers of ten are ticks."""
    assert list(logarithmic([3, 900], 0, 600, 60).ticks) == [2, 5, 10, 20, 50, 100, 200, 500, 1000]
    assert list(logarithmic([3, 900], 0, 200, 60).ticks) == [1, 10, 100, 1000]


def test_what_a_scale_cannot_show_is_refused() -> None:
    """A logarithmic scale refuses zero. A finished scale refuses a value outside of its ends."""
    with pytest.raises(ValueError, match="above zero"):
        logarithmic([0, 1], 0, 100, 10)
    with pytest.raises(ValueError, match="nothing was drawn"):
        logarithmic([1, 10], 0, 100, 10).at(11)


def test_times_are_written_in_their_own_unit() -> None:
    assert [time_text(value) for value in (1e-6, 2e-5, 1e-3, 0.5, 10)] == ["1 µs", "20 µs", "1 ms", "500 ms", "10 s"]


def test_texts_are_escaped() -> None:
    """Special characters of XML in names and labels appear as text of the picture, not as markup."""
    groups = [RowGroup("<script>", [Row("x & y", [ChartMark(0, 1, "1 <"), ChartMark(1, 20, '20 "')])])]
    root = ElementTree.fromstring(dots(WORDS, groups))  # noqa: S314 - written by this test
    found = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<script>", "x & y", "1 <", '20 "', "b <c> & d", "ms, log scale"} <= set(found)


def test_the_description_has_the_values() -> None:
    """The description for screen readers has every value of rows and of panels."""
    rows = bars(
        WORDS,
        [RowGroup("One", [Row("x", [ChartMark(0, 3, "3 ms")])]), RowGroup("", [Row("y", [ChartMark(1, 4, "4 ms")])])],
    )
    assert "How it is read. One: x, a 3 ms. y, b &lt;c&gt; &amp; d 4 ms." in rows
    words = Words("A title", "Read.", "ms", ("a",), across="n")
    assert "Read. P: a, 3 at 1, 4 at 2." in lines(words, [ChartPanel("P", {0: [(1, 3), (2, 4)]})], logs=(False, False))


def test_the_same_calls_give_the_same_picture() -> None:
    def drawn() -> str:
        canvas = Canvas(100, 50, "t", "d")
        canvas.mark(0, 5, 5, "one")
        return canvas.svg()

    assert drawn() == drawn()


def test_a_run_of_the_purgatory_is_kept_beside_its_pictures(tmp_path: Path) -> None:
    """The pictures show the medians of the runs. Drawn again from the stored file, they are the same."""
    points = [
        {"design": design, "case": case, "rate": rate, "core": "compiled", "achieved": achieved, "cpu_us": 9.5}
        for design, case in (("new", "low"), ("new", "high"), ("old", "low"), ("bare", "low"))
        for rate in (10_000, 40_000)
        for achieved in (9_000, 9_500, 9_990)
    ]
    paths = purgatory_plots.write_plots({"points": points}, tmp_path / "plots")
    assert [path.name for path in paths] == ["purgatory-rate.svg", "purgatory-cpu.svg"]
    first = [path.read_text("utf-8") for path in paths]
    assert "9.5 at 10, 9.5 at 40" in first[0]  # the median, in thousands
    assert '"bare"' not in (tmp_path / "plots" / "purgatory.json").read_text("utf-8")
    assert [path.read_text("utf-8") for path in purgatory_plots.draw(tmp_path / "plots")] == first


def test_a_short_run_of_the_wheel_has_its_pictures(tmp_path: Path) -> None:
    """Pictures of one number of timers can be drawn. An implementation that was not measured is left out."""
    counts = {"uniform": {"10k": {"wheel, compiled": 80.4, "heapq": 400.0}}}
    table = {"schedule": counts, "expire": counts, "cancelled90": {"uniform": {"500": {"heapq": 900.0}}}}
    paths = wheel_plots.write_plots({"table": table}, tmp_path / "plots")
    assert [path.stem for path in paths] == ["wheel", "wheel-schedule", "wheel-expire", "wheel-cancelled90"]
    text = paths[0].read_text("utf-8")
    assert "Schedule a timer: wheel, compiled, 80.4 at 10,000; heapq, 400 at 10,000." in text
    assert "A request, 90 % cancelled: heapq, 900 at 500." in text
    assert "kombu" not in paths[1].read_text("utf-8")


def test_a_run_of_apscheduler_is_kept_beside_its_picture(tmp_path: Path) -> None:
    pair = {"stock": 30.0, "ours": 2.0, "more": 1}
    names = ("redis_us", "p99_lateness_ms_10k", "add_job_ms_50k_due", "loop_stall_ms_3k", "update_us_1m")
    result = {"drain_us": {"date": pair, "interval": pair}, **dict.fromkeys(names, pair), "jobs": 1}
    (path,) = apscheduler_plots.write_plots(result, tmp_path)
    first = path.read_text("utf-8")
    assert "30.00 µs" in first
    assert '"jobs"' not in (tmp_path / "apscheduler.json").read_text("utf-8")
    assert apscheduler_plots.draw(tmp_path)[0].read_text("utf-8") == first
