"""A figure that is a rate or a lateness says how long it was measured, in the JSON, the table and the page."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import fitness, purgatory
from benchmarks.__main__ import BENCHMARKS
from benchmarks.figures import Figure
from benchmarks.fitness import Fitness
from benchmarks.measured import Measured
from benchmarks.report import markdown, table

LATE = Figure("lateness_ms.p99", "ms", "a lateness")
RATE = Figure("rate", "msg/s", "a rate")
COUNT = Figure("lost", "messages", "a count")
AROUND = {"python": "3", "server": "valkey", "cpus": 2, "rounds": 3, "lateness_ms": {"p99": 5.0}, "rate": 7, "lost": 0}


def needs_a_length(figure: Figure) -> bool:
    """Whether a figure must say how long it was measured: a rate, a lateness, or a ratio of two of these."""
    words = (figure.key, figure.baseline)
    return "/" in figure.unit or any("late" in word or "wakeup_" in word or "per_s" in word for word in words)


@pytest.mark.parametrize("sizes", ["QUICK", "FULL"])
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_rate_and_lateness_says_how_long_it_is_measured(name: str, sizes: str) -> None:
    """A benchmark tells for each rate and lateness how long it is measured, for `lateness_ms` in seconds too."""
    benchmark = import_module(f"benchmarks.{name}")
    lengths = benchmark.measured(getattr(benchmark, sizes))
    result = {"measured": {key: one.in_json() for key, one in lengths.items()}}
    needy = [figure for figure in benchmark.FIGURES if needs_a_length(figure)]
    assert [figure.key for figure in needy if not figure.measured(result)] == []
    assert [one for one in lengths.values() if one.count is None and one.seconds is None] == []
    steady = [figure.measured(result) for figure in needy if "lateness_ms" in figure.key]
    assert [text for text in steady if not text.endswith(" s")] == []
    keys = {figure.key for figure in benchmark.FIGURES} | {figure.baseline for figure in benchmark.FIGURES}
    assert [key for key in lengths if not any(f"{one}.".startswith(f"{key}.") for one in keys)] == []


def test_the_lengths_stand_in_table_page_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table, the page and the JSON tell how long each figure was measured, if its benchmark says so.

    The key `lateness_ms` gives the length of all figures whose keys begin with it.
    """
    lengths = {"lateness_ms": Measured(5, 2_000, "messages", 4.0), "rate": Measured(3, 500, "messages")}
    result: dict[str, Any] = {**AROUND, "measured": {key: one.in_json() for key, one in lengths.items()}}
    late, rate, count, *_ = table((LATE, RATE, COUNT), result).splitlines()
    assert "5 x 2,000 messages in 4 s" in late
    assert rate.endswith("3 x 500 messages")
    assert " x " not in count
    assert "- 5 x 2,000 messages in 4 s: `lateness_ms`.\n- 3 x 500 messages: `rate`." in markdown(
        (LATE, RATE, COUNT), result
    )
    monkeypatch.setattr(purgatory, "run", lambda _: dict(AROUND))
    monkeypatch.setattr(fitness, "measure", lambda: Fitness(0.2, 1.0, 5.0))
    assert command.main(["purgatory", "--json", "--quick"]) == 0
    found = json.loads(capsys.readouterr().out)["measured"]["new_low_rate"]
    assert found == {"rounds": 2, "count": None, "of": "requests at each rate", "measured_s": 0.7}
