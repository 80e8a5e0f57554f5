"""The simulated load of a policy: compared with exact formulas, in virtual time, and with bounds."""

from __future__ import annotations

import time

import pytest

from retry_topic.policy import Exponential, Fixed, RetryPolicy, Rule
from retry_topic.policy.load_simulation import MAX_LOAD_ATTEMPTS, LoadSimulation, Traffic, simulate_load
from wheel_sched.errors import ConfigError

PLAIN = RetryPolicy(delay=Fixed(1_000), max_attempts=4)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_attempts_and_deaths_agree_with_the_closed_forms(rate: float) -> None:
    """With failure probability p and n attempts, a message has (1 - p^n) / (1 - p) attempts on average, and dies with
    probability p^n.

    With 20,000 messages the mean of the attempts has a standard error below 0.011, and each share below 0.0036.
    """
    found = simulate_load(PLAIN, Traffic(rate, per_second=1_000, seconds=20))
    assert found.messages == 20_000
    assert found.load_factor == pytest.approx((1 - rate**4) / (1 - rate), abs=0.05)
    assert found.died.get("max-attempts", 0) / found.messages == pytest.approx(rate**4, abs=0.015)
    for attempt in (1, 2, 3, 4):
        expected = rate ** (attempt - 1) * (1 - rate)
        assert found.succeeded_at.get(attempt, 0) / found.messages == pytest.approx(expected, abs=0.015)


def test_without_failures_each_message_takes_one_attempt() -> None:
    """With a failure rate of 0, every message succeeds at its first attempt."""
    found = simulate_load(PLAIN, Traffic(0, per_second=5, seconds=60))
    assert (found.attempts, found.load_factor, found.died) == (300, 1.0, {})
    assert found.succeeded_at == {1: 300}
    assert found.success_ms == {"p50": 0, "p90": 0, "p99": 0}
    assert list(found.attempts_in) == list(found.first_attempts_in)
    assert found.peak_per_second == 5


def test_if_everything_fails_all_die_after_the_allowed_attempts() -> None:
    """With a failure rate of 1, every message has all its attempts, and there is no time to success."""
    found = simulate_load(PLAIN, Traffic(1, per_second=5, seconds=60))
    assert (found.attempts, found.died, found.success_ms) == (1_200, {"max-attempts": 300}, None)
    assert found.succeeded == 0
    assert found.peak_per_second == 20  # first attempts, and the retries of the three seconds before


def test_an_outage_makes_a_herd_and_jitter_spreads_it() -> None:
    """All messages of an outage fail. With a fixed delay, no attempt comes for a while, and then the retries come as
    close together as the messages did. With jitter the retries are spread, and some come earlier."""
    traffic = Traffic(0, per_second=50, seconds=30, outage_s=30)
    plain = RetryPolicy(delay=Fixed(40_000), max_attempts=4)
    spread = RetryPolicy(delay=Exponential(40_000, jitter="full"), max_attempts=4)
    herd, calm = simulate_load(plain, traffic), simulate_load(spread, traffic)
    assert (herd.attempts, herd.succeeded) == (3_000, 1_500)
    assert herd.success_ms == {"p50": 40_000, "p90": 40_000, "p99": 40_000}
    assert herd.bucket_ms == 500
    assert set(herd.attempts_in[60:80]) == {0}
    assert set(herd.attempts_in[80:]) == {25}
    assert herd.later == 500  # retries for the last ten seconds of the outage come after 60 s
    assert min(calm.attempts_in[60:80]) > 0
    assert calm.success_ms is not None
    assert calm.success_ms["p50"] < 40_000


def test_the_policys_rules_see_class_and_status() -> None:
    """A rule for the class or for the status of the simulated errors is applied."""
    policy = RetryPolicy(rules=(Rule(statuses=(410,), dead=True), Rule(errors=("app.Final",), dead=True)))
    assert simulate_load(policy, Traffic(1, 1, 10, status=410)).died == {"fatal": 10}
    assert simulate_load(policy, Traffic(1, 1, 10, error_class="app.Final")).died == {"fatal": 10}
    assert simulate_load(policy, Traffic(1, 1, 10)).died == {"max-attempts": 10}


def test_equal_seeds_give_equal_numbers() -> None:
    """Equal arguments and an equal seed give equal results."""
    one, two, other = (simulate_load(RetryPolicy(), Traffic(0.5, 10, 10), seed).as_dict() for seed in (1, 1, 2))
    assert one == two != other


def test_the_numbers_add_up() -> None:
    """Every message ends once. Every attempt is in a bucket or counts as later."""
    found: LoadSimulation = simulate_load(RetryPolicy(), Traffic(0.7, 3, 100), 5)
    assert found.succeeded + sum(found.died.values()) == found.messages == 300
    assert sum(found.attempts_in) + found.later == found.attempts
    assert sum(found.first_attempts_in) == found.messages


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((-0.1,), "failure rate"),
        ((1.1,), "failure rate"),
        ((float("nan"),), "failure rate"),
        ((0.5, float("inf")), "messages a second"),
        ((0.5, 0), "messages a second"),
        ((0.5, 1, 0), "1 to 86,400 seconds"),
        ((0.5, 1, 60, -1), "outage"),
        ((0.5, 10_000, 86_400), "at most 20,000 messages"),
    ],
)
def test_traffic_has_bounds(arguments: tuple[float, ...], words: str) -> None:
    """A value outside its bounds is refused, and the error names the bounds."""
    with pytest.raises(ConfigError, match=words):
        Traffic(*arguments)  # type: ignore[arg-type]


def test_a_simulation_that_would_take_long_is_refused() -> None:
    """The simulation of a policy that retries for ever ends at a limit of attempts with an error, within seconds."""
    endless = RetryPolicy(delay=Fixed(1), max_attempts=None)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=f"at most {MAX_LOAD_ATTEMPTS:,} attempts"):
        simulate_load(endless, Traffic(1))
    assert time.monotonic() - began < 20


def test_a_message_in_a_second_is_enough() -> None:
    """Even the slowest traffic has one message."""
    assert simulate_load(PLAIN, Traffic(0, 0.001, 1)).messages == 1
