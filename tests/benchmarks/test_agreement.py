"""Comparing the ratios of two runs, for example of a quick and of a full run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import purgatory
from benchmarks.agreement import UnusableRunError, compared, read, table
from benchmarks.figures import Figure

RATE = Figure("ours_vs_bare", "x", "a ratio of rates", at_least=0.7)
COST = Figure("cost", "ms", "a cost as a multiple of its baseline", at_most=3, baseline="bare", in_baselines=True)
COUNT = Figure("lost", "messages", "a count", at_most=0)
FIGURES = (RATE, COST, COUNT)


def test_ratios_that_differ_by_more_than_fifteen_percent_are_marked() -> None:
    """The table has each gated ratio of both runs with its rounds, and says how many agree. Counts are left out."""
    full = {"ours_vs_bare": 1.0, "cost": 4.0, "bare": 2.0, "lost": 0}
    quick = {"ours_vs_bare": 0.86, "cost": 2.0, "bare": 2.0, "lost": 0, "spread": {RATE.key: {"min": 0.8, "max": 0.9}}}
    rate, cost = compared(FIGURES, quick, full)
    assert (round(rate.percent), rate.agrees) == (-14, True)
    assert (round(cost.percent), cost.agrees) == (-50, False)
    text = table([rate, cost])
    assert "| `ours_vs_bare` | 0.86 | 0.80 to 0.90 | 1.00 |  | -14 % |  |" in text
    assert "| `cost` | 1.00 |  | 2.00 |  | -50 % | differs |" in text
    assert text.endswith("1 of 2 ratios differ by 15 % at most.")


@pytest.mark.parametrize("text", ["hello", "5", '{"another": 1.0}'])
def test_a_file_of_something_else_is_named(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file, and the command measures nothing."""
    file = tmp_path / "run.json"
    file.write_text(text, "utf-8")
    with pytest.raises(UnusableRunError, match=r"run\.json"):
        read(file, FIGURES)
    monkeypatch.setattr(purgatory, "run", lambda _: pytest.fail("it was measured"))
    assert command.main(["purgatory", "--against", str(file)]) == 2
    assert command.main(["purgatory", "--against", str(tmp_path / "absent.json")]) == 2


def test_a_file_of_a_run_is_read(tmp_path: Path) -> None:
    """A run that `--json` has printed can be compared."""
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"ours_vs_bare": 2.0}), "utf-8")
    assert compared(FIGURES, {"ours_vs_bare": 2.0}, read(file, FIGURES))[0].percent == 0
