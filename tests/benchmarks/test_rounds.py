"""The order of rounds, percentiles, and when a message counts as early."""

from __future__ import annotations

import io
import random
from functools import partial

from benchmarks.figures import Figure
from benchmarks.narration import Narration
from benchmarks.outside import Arrival
from benchmarks.report import table
from benchmarks.rounds import interleaved, median_spread, over_rounds, percentile, ratios


def test_rounds_are_interleaved_in_alternating_order() -> None:
    """The run that is first in one round is last in the next, so that a slow change of the machine favours no run."""
    order: list[str] = []
    runs = {name: partial(order.append, name) for name in ("a", "b")}
    interleaved(3, runs, Narration(6, io.StringIO()))
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_a_percentile_is_a_value_that_was_measured() -> None:
    """A percentile is the value of the nearest rank: p50 and p99 of 1 to 100 are 50 and 99."""
    values = [float(number) for number in range(1, 101)]
    random.shuffle(values)
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (50, 99, 100)
    assert percentile([7.0], 99) == 7


def test_the_maximum_of_rounds_is_never_averaged_away() -> None:
    """Percentiles are medians over rounds; `max` is the largest of all rounds."""
    rounds = [{"p50": 1.0, "max": 3.0}, {"p50": 2.0, "max": 90.0}, {"p50": 5.0, "max": 4.0}]
    assert median_spread(rounds) == {"p50": 2.0, "max": 90.0}


def test_a_ratio_is_taken_within_its_round() -> None:
    """If a busy machine halves our rate and the baseline's rate in one round, their ratio does not change.

    The spread has the least, the median and the greatest ratio of the rounds.
    """
    found = ratios([100.0, 50.0, 90.0], [200.0, 100.0, 100.0])
    assert found == [0.5, 0.5, 0.9]
    assert over_rounds(found) == {"min": 0.5, "median": 0.5, "max": 0.9}


def test_the_table_shows_rounds_and_baseline_of_a_ratio() -> None:
    """The table shows with a ratio its least and greatest value of all rounds, and the value of its baseline."""
    figure = Figure("ours_vs_bare", "x", "a ratio", at_least=0.7, baseline="baseline.bare")
    spread = {"ours_vs_bare": {"min": 0.61, "median": 0.8, "max": 1.25}}
    around = {"python": "3", "server": "valkey", "cpus": 2, "rounds": 3}
    row = table([figure], {"ours_vs_bare": 0.8, "spread": spread, "baseline": {"bare": 5_000}, **around})
    assert "rounds 0.61 to 1.25  of baseline.bare 5,000" in row.splitlines()[0]


def test_a_message_is_early_when_either_clock_says_so() -> None:
    """A message is early if the server's entry id or the receiver's clock is before its due time."""
    due_ms = 1_000
    assert not Arrival(0, due_ms, entry_ms=1_000, arrived_ns=1_000_000_000).early
    assert Arrival(0, due_ms, entry_ms=999, arrived_ns=1_000_500_000).early
    assert Arrival(0, due_ms, entry_ms=1_000, arrived_ns=999_999_999).early


def test_narration_is_plain_lines_where_there_is_no_terminal() -> None:
    """Output that is no terminal gets no control characters."""
    log = io.StringIO()
    narration = Narration(2, log)
    narration.step("one")
    narration.close()
    assert log.getvalue() == "one\n"
