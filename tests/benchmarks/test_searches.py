"""The search for the highest rate that a design of the purgatory sustains, and the ratios between the designs.

`benchmarks.purgatory` lists the designs, and says when a design sustains a rate.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from benchmarks import purgatory
from benchmarks.narration import Narration
from benchmarks.purgatory import Sizes, _Bench, _spread

if TYPE_CHECKING:
    import pytest

SIZES = Sizes(rates=(10, 20, 40, 80), tries=2)


def bench(highest: dict[tuple[str, str], int], monkeypatch: pytest.MonkeyPatch) -> tuple[_Bench, list[tuple[str, int]]]:
    """A benchmark whose designs sustain every rate up to `highest`, and the list of (design, rate) that it tries."""
    asked: list[tuple[str, int]] = []

    def point(_: _Bench, design: str, case: str, rate: int, **_options: Any) -> dict[str, Any]:
        asked.append((design, rate))
        return {"sustained": rate <= highest[design, case], "cpu_us": 1.0}

    monkeypatch.setattr(_Bench, "point", point)
    return _Bench(SIZES, Narration(1, io.StringIO())), asked


def test_a_search_climbs_from_its_first_rate_to_the_highest_sustained_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Higher rates are tried until a design twice fails to sustain one. A sustained rate is tried once.

    The designs take turns.
    """
    bench_, asked = bench({("old", "low"): 10, ("new", "low"): 40}, monkeypatch)
    assert bench_.highest_rates({("old", "low"): 10, ("new", "low"): 20}) == {("old", "low"): 10, ("new", "low"): 40}
    assert asked == [("old", 10), ("new", 20), ("old", 20), ("old", 20), ("new", 40), ("new", 80), ("new", 80)]


def test_a_search_goes_down_when_its_first_rate_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slower machine the search finds the highest rate below the first one, or 0 when there is none."""
    bench_, _ = bench({("new", "low"): 20, ("new", "high"): 5}, monkeypatch)
    assert bench_.highest_rates({("new", "low"): 80, ("new", "high"): 40}) == {("new", "low"): 20, ("new", "high"): 0}


def test_a_design_that_misses_the_lowest_rate_counts_as_sustaining_it() -> None:
    """A rate of 0 is replaced by the lowest rate, here 10, so the ratio to that design is a lower bound.

    There are two cases. The result has the greater of their two ratios of processor times.
    """
    found = {("old", "low"): [20, 10], ("new", "low"): [80, 80], ("old", "high"): [0, 0], ("new", "high"): [40, 20]}
    spread = _spread(found, {"low": ([2.0, 2.0], [1.0, 2.0]), "high": ([3.0, 3.0], [1.0, 1.5])}, 10)
    assert spread == {
        "new_vs_old_low": {"min": 4, "median": 6, "max": 8},
        "new_vs_old_high": {"min": 2, "median": 3, "max": 4},
        "cpu_vs_bare": {"min": 2, "median": 2.5, "max": 3},
    }


def test_every_gated_figure_of_the_purgatory_has_a_spread_and_a_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result has the spread over the rounds and the baseline of each gated figure.

    If the first search finds that a design does not sustain the lowest rate of a case, later searches leave out this
    design in this case.
    """
    _, asked = bench(
        {(design, case): 40 for design in ("new", "bare") for case in ("low", "high")}
        | {("old", "low"): 20, ("old", "high"): 5},
        monkeypatch,
    )
    monkeypatch.setattr(purgatory, "run_module", lambda *_: {"heartbeats_per_s": 1, "bytes_per_member": 1.0})
    result = purgatory.run(Sizes(rates=(10, 20, 40), new_from=20, searches=3, rounds=2, bare_rate=20, sizes=()))
    gated = [figure for figure in purgatory.FIGURES if figure.bound]
    assert [figure.key for figure in gated if figure.spread(result) is None] == []
    assert [figure.key for figure in gated if figure.baseline_value(result) is None] == []
    assert (result["old_high_rate"], result["new_vs_old_high"], result["new_vs_old_low"]) == (0, 4, 2)
    assert asked.count(("old", 10)) == 1 + 2  # the first search of the low case, and two tries of the high case
