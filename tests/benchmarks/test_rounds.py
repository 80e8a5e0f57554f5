"""The order of rounds, percentiles, and when a message counts as early."""

from __future__ import annotations

import io
import random
from functools import partial

from benchmarks.narration import Narration
from benchmarks.outside import Arrival
from benchmarks.rounds import interleaved, median_spread, percentile


def test_rounds_are_interleaved_in_alternating_order() -> None:
    """The first run of a round is the last of the next, so that a slow change of the machine favours no run."""
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
