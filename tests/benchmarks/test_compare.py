"""The comparison of two commits: what it calls a change, and in which order it measures."""

from __future__ import annotations

import io
import random

import pytest

from benchmarks.compare import by_turns, changes, main, tree_of
from benchmarks.figures import Figure
from benchmarks.narration import Narration

RATIO = Figure("ours_vs_bare", "x", "a ratio", at_least=0.7)
COST = Figure("bytes", "bytes", "a cost", at_most=300)
CONTEXT = Figure("rate", "msg/s", "a rate")


def rounds_with(factor: float, noise: float = 0.01, count: int = 5) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Return pairs of figures for `count` rounds: those of the base commit, then those of the other commit.

    The other commit's figures are `factor` times the base's. The machine's speed differs from round to round.
    """
    rng = random.Random(1)
    pairs = []
    for _ in range(count):
        speed = rng.uniform(0.3, 3)
        near = factor * (1 + rng.uniform(-noise, noise))
        pairs.append(({"ours_vs_bare": speed, "bytes": speed}, {"ours_vs_bare": speed * near, "bytes": speed * near}))
    return pairs


def test_a_change_is_seen_through_a_machine_that_changes_its_speed() -> None:
    """A loss of a fifth is a clear change of about -20 %, although the machine's speed varies tenfold between
    rounds."""
    (change,) = changes([RATIO], rounds_with(0.8))
    assert change.percent == pytest.approx(-20, abs=1)
    assert change.low < change.percent < change.high < 0
    assert change.is_clear
    assert change.is_worse


def test_no_change_is_not_called_one() -> None:
    """If two commits are equally fast and the noise is 5 %, the interval of the change includes 0."""
    (change,) = changes([RATIO], rounds_with(1.0, noise=0.05))
    assert change.low < 0 < change.high
    assert not change.is_worse
    assert str(change).endswith("no change shown")


def test_a_noisy_loss_is_not_called_worse() -> None:
    """A mean loss of a fifth is not clear if the rounds differ by more than a fifth."""
    (change,) = changes([RATIO], rounds_with(0.8, noise=0.6))
    assert not change.is_clear
    assert not change.is_worse


def test_the_gate_says_which_direction_is_worse() -> None:
    """More bytes are worse, a greater ratio is better, and a figure without a gate is never worse."""
    ratio, cost = changes([RATIO, COST], rounds_with(1.2))
    assert (ratio.is_worse, cost.is_worse) == (False, True)
    (context,) = changes([CONTEXT], [({"rate": 100}, {"rate": 10}), ({"rate": 99}, {"rate": 10})])
    assert context.is_clear
    assert not context.is_worse


def test_a_small_loss_is_allowed() -> None:
    """A loss of 5 % is a clear change, but too small to be called worse."""
    (change,) = changes([RATIO], rounds_with(0.95, noise=0.005))
    assert change.is_clear
    assert not change.is_worse


def test_a_figure_that_one_commit_does_not_have_is_left_out() -> None:
    """A figure that only one of the commits has is not compared."""
    assert changes([RATIO, COST], [({"bytes": 1.0}, {"bytes": 1.0, "ours_vs_bare": 1.0})] * 2)[0].key == "bytes"


def test_the_commits_take_turns() -> None:
    """The commit that was measured first in one round is measured last in the next."""
    order: list[str] = []

    def of(name: str) -> dict[str, float]:
        order.append(name)
        return {"ours_vs_bare": len(order)}

    found = by_turns(lambda: of("base"), lambda: of("here"), 3, Narration(6, io.StringIO()))
    assert order == ["base", "here", "here", "base", "base", "here"]
    assert [base["ours_vs_bare"] for base, _ in found] == [1, 4, 5]


def test_an_unknown_commit_is_refused() -> None:
    """If a commit does not exist, nothing is measured, and the error names the commit."""
    with pytest.raises(SystemExit, match="no-such-commit"), tree_of("no-such-commit"):
        pass


def test_one_round_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison of a single round is refused, because it has no interval."""
    with pytest.raises(SystemExit):
        main(["HEAD", "--rounds", "1"])
    assert "at least two rounds" in capsys.readouterr().err
