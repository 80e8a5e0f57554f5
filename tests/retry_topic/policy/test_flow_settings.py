"""Flow control in policy files: every mistake is listed, settings are read back as written, spreads are even."""

from __future__ import annotations

import random

import pytest

from retry_topic.policy import (
    Breaker,
    Budget,
    Failure,
    Fixed,
    PolicySet,
    Rate,
    RetryDecision,
    RetryPolicy,
    decide,
    dump_policies,
    explain,
    load_policies,
)
from retry_topic.policy.flow import describe
from retry_topic.release.flow import limits_of
from wheel_sched.errors import ConfigError

GOOD = """
[default]
spread = "30s"
rate = "100/s"
burst = 20
budget = { share = "10%", least = "30/m" }
breaker = { failures = "60%", of = 5, within = "2m", open = "10s", by = "x-host" }

[topic.free]
spread = "0ms"
rate = "unlimited"
burst = 0
budget = "off"
breaker = "off"
"""


def test_settings_are_read_and_inherited() -> None:
    """A topic has the settings of the default policy unless it sets its own or switches them off."""
    policies = load_policies(GOOD)
    default = policies.for_topic("any")
    assert default.rate == Rate(100, "s")
    assert (default.burst, default.spread_ms) == (20, 30_000)
    assert default.budget == Budget(10, Rate(30, "m"))
    assert default.breaker == Breaker(60, 5, 120_000, 10_000, "x-host")
    assert default.limited
    free = policies.for_topic("free")
    assert (free.rate, free.burst, free.budget, free.breaker, free.spread_ms) == (None, 0, None, None, 0)
    assert not free.limited


def test_what_was_written_is_read_back() -> None:
    """Policies that are dumped and loaded are equal."""
    policies = load_policies(GOOD)
    assert load_policies(dump_policies(policies)) == policies


def test_every_mistake_is_named_at_once() -> None:
    """One error lists all mistakes of a policy file, each with its place and the expected value."""
    with pytest.raises(ConfigError) as caught:
        load_policies(
            """
            [default]
            spread = 5
            rate = "fast"
            burst = -1
            budget = { share = "0%", least = "1/w", shares = 1 }

            [topic.orders]
            breaker = { failures = 50, of = 0, within = "1ms", open = "5s", by = 3 }
            """
        )
    assert list(caught.value.problems) == [
        '[default] expected spread to be a duration such as "90s", got: 5',
        '[default] expected rate to be a rate such as "100/s", "30/m" or "5/h", got: \'fast\'',
        "[default.budget] expected keys share, least, got: shares; did you mean share?",
        '[default.budget] expected share to be a share from "1%" to "100%", got: \'0%\'',
        '[default.budget] expected least to be a rate such as "100/s", "30/m" or "5/h", got: \'1/w\'',
        "[default] expected burst to be an integer from 0 to 1000000, got: -1",
        '[topic.orders.breaker] expected failures to be a share from "1%" to "100%", got: 50',
        "[topic.orders.breaker] expected by to be a text, got: 3",
        "[topic.orders.breaker] expected breaker.of to be an integer from 1 to 1000000, got: 0",
        "[topic.orders.breaker] expected breaker.within to be from 100ms to 3650d, got: 1ms",
    ]


def test_a_policy_made_in_code_is_checked_as_well() -> None:
    """A wrong rate in Python code is an error too."""
    with pytest.raises(ConfigError, match="expected rate to be a Rate or None, got: '100/s'"):
        RetryPolicy(rate="100/s")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected rate to be per s, m or h"):
        Rate(5, "w")


def test_limits_are_whole_numbers_that_never_exceed_what_was_said() -> None:
    """The interval of a rate is rounded up to whole microseconds, so that the rate is never exceeded."""
    limits = limits_of(RetryPolicy(rate=Rate(3, "s"), burst=2, budget=Budget(5, Rate(1, "h")), breaker=Breaker()))
    assert (limits.interval_us, limits.burst, limits.share_ppm, limits.least_mhz) == (333_334, 2, 50_000, 1)
    assert (limits.trip_ppm, limits.of, limits.within_ms, limits.open_ms) == (500_000, 20, 60_000, 30_000)


def test_spread_is_even_and_never_early() -> None:
    """Due times are spread evenly over `spread_ms` after the delay, and none is earlier."""
    policy = RetryPolicy(delay=Fixed(base_ms=1_000), spread_ms=10_000)
    rng = random.Random(7)
    dues = []
    for _ in range(4_000):
        decision = decide(policy, Failure(), 0, rng)
        assert isinstance(decision, RetryDecision)
        assert decision.delay_ms == decision.due_ms
        dues.append(decision.due_ms)
    assert min(dues) >= 1_000
    assert max(dues) <= 11_000
    for quarter in range(4):
        inside = sum(1_000 + 2_500 * quarter <= due < 3_500 + 2_500 * quarter for due in dues)
        assert 850 < inside < 1_150


def test_spread_does_not_kill_a_message_by_its_age() -> None:
    """The spread ends at the maximum age, so it never makes a dead letter."""
    policy = RetryPolicy(delay=Fixed(base_ms=1_000), spread_ms=60_000, max_age_ms=1_500)
    for seed in range(50):
        decision = decide(policy, Failure(first_failed_ms=0), 0, random.Random(seed))
        assert isinstance(decision, RetryDecision)
        assert 1_000 <= decision.due_ms <= 1_500


def test_explanations_tell_of_the_spread() -> None:
    """The explanation of a decision has the drawn spread."""
    policy = RetryPolicy(delay=Fixed(base_ms=1_000), spread_ms=10_000)
    decision = decide(policy, Failure(), 0, random.Random(1))
    assert "spread drew" in explain(decision)


def test_settings_are_told_in_words() -> None:
    """`describe` returns one line for each setting."""
    default = load_policies(GOOD).default
    lines = describe(default.rate, default.burst, default.spread_ms, default.budget, default.breaker)
    assert [line.partition(":")[0] for line in lines] == ["spread", "rate", "budget", "breaker"]
    assert "at most 100/s" in lines[1]
    assert "header x-host" in lines[3]
    assert describe(None, 0, 0, None, None) == []
    assert not PolicySet().default.limited
