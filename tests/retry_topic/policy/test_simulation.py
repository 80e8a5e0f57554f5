"""The simulation of a policy, and its plot."""

from __future__ import annotations

import json
import random

import pytest

from retry_topic.policy import Decorrelated, Exponential, Fixed, Listed, RetryPolicy, Rule, Spread, plot, simulate
from wheel_sched.errors import ConfigError


def test_a_policy_without_jitter_gives_one_line_of_times() -> None:
    """Delays and elapsed times are exactly the configured ones, and max_attempts ends every message."""
    simulation = simulate(RetryPolicy(delay=Listed((1_000, 5_000)), max_attempts=3), samples=10)
    first, second, third = simulation.steps
    assert first.delay == Spread(1_000, 1_000, 1_000, 1_000)
    assert second.elapsed == Spread(6_000, 6_000, 6_000, 6_000)
    assert (third.delay, third.elapsed, third.retried, third.died) == (None, None, 0, {"max-attempts": 10})


def test_full_jitter_shows_its_spread() -> None:
    """Median and 90th percentile of a uniform delay are as expected."""
    simulation = simulate(RetryPolicy(delay=Exponential(10_000)), attempts=1, samples=20_000, rng=random.Random(5))
    delay = simulation.steps[0].delay
    assert delay is not None
    assert delay.min_ms < 50
    assert delay.p50_ms == pytest.approx(5_000, rel=0.03)
    assert delay.p90_ms == pytest.approx(9_000, rel=0.03)
    assert delay.max_ms > 9_950


def test_the_cap_by_age_shows_when_it_bites() -> None:
    """Messages end at the attempt whose retry would be beyond the maximum age."""
    simulation = simulate(RetryPolicy(delay=Fixed(400), max_age_ms=1_000), samples=7)
    assert [step.retried for step in simulation.steps] == [7, 7, 0]
    assert simulation.steps[-1].died == {"max-age": 7}


def test_every_message_is_accounted_for() -> None:
    """At each attempt, every remaining message is either retried or dead."""
    simulation = simulate(RetryPolicy(max_age_ms=20_000), samples=500)
    alive = 500
    for step in simulation.steps:
        assert step.retried + sum(step.died.values()) == alive
        alive = step.retried
    assert alive == 0


def test_rules_are_simulated_for_the_error_given() -> None:
    """The given error and status decide which rule is simulated."""
    policy = RetryPolicy(rules=(Rule(errors=("ValueError",), dead=True), Rule(statuses=(429,), delay=Fixed(9))))
    dead = simulate(policy, samples=3, error_class="a.B", error_mro=("builtins.ValueError",))
    assert dead.steps[0].died == {"fatal": 3}
    limited = simulate(policy, samples=3, attempts=1, status=429)
    assert limited.steps[0].delay == Spread(9, 9, 9, 9)


def test_decorrelated_jitter_grows_from_attempt_to_attempt() -> None:
    """The next delay of each message depends on the message's last delay."""
    steps = simulate(RetryPolicy(delay=Decorrelated(1_000)), attempts=3, samples=2_000).steps
    greatest = [step.delay.max_ms for step in steps if step.delay]
    assert greatest[0] <= 3_000 < 7_000 < greatest[1] <= 9_000 < 15_000 < greatest[2] <= 27_000


def test_the_same_seed_gives_the_same_page() -> None:
    """Two simulations with the same seed are equal. Without a generator, the seed is fixed."""
    assert simulate(RetryPolicy(), samples=50) == simulate(RetryPolicy(), samples=50)


def test_the_simulation_is_plain_data() -> None:
    """The result of `simulate` can be written as JSON without a special encoder."""
    data = json.loads(json.dumps(simulate(RetryPolicy(delay=Fixed(5)), samples=2).as_dict()))
    assert data["policy"] == "default@1"
    assert data["steps"][0]["delay"] == {"min_ms": 5, "p50_ms": 5, "p90_ms": 5, "max_ms": 5}
    assert data["steps"][-1] == {
        "attempt": 8,
        "retried": 0,
        "died": {"max-attempts": 2},
        "delay": None,
        "elapsed": None,
    }


@pytest.mark.parametrize(("attempts", "samples"), [(0, 1), (1, 0), (10**6, 10**6)])
def test_senseless_sizes_are_refused(attempts: int, samples: int) -> None:
    """`simulate` refuses 0 attempts, 0 samples, and numbers of both that are too large together."""
    with pytest.raises(ConfigError, match="expected attempts and samples"):
        simulate(RetryPolicy(), attempts, samples)


def test_the_plot_has_a_bar_per_attempt_and_the_deaths() -> None:
    """The plot has one line for each attempt, with a bar for its delay, and the number of dead messages."""
    lines = plot(simulate(RetryPolicy(delay=Listed((1_000, 2_000, 4_000)), max_attempts=4), samples=4), 20).splitlines()
    assert lines[0].startswith("default@1, 4 messages")
    assert [line.count("▓") for line in lines[1:]] == [1, 1, 1, 0]  # all delays are equal, so each line has one mark
    assert [line.find("▓") for line in lines[1:4]] == [10, 15, 25]
    assert lines[4] == "   4  dead: 100% max-attempts"


def test_a_plot_of_zero_delays_is_still_a_plot() -> None:
    """If all delays are 0, the plot is made without a division by zero."""
    assert "0s" in plot(simulate(RetryPolicy(delay=Fixed(0)), samples=2))
