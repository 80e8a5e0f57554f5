"""The decision of a policy: order of precedence, limits, and what forged failures cannot do."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retry_topic.policy import (
    DeadDecision,
    Decision,
    Decorrelated,
    Delay,
    Exponential,
    Failure,
    Fixed,
    Linear,
    Listed,
    RetryDecision,
    RetryPolicy,
    Rule,
    decide,
    explain,
)
from wheel_sched.errors import ConfigError

NOW_MS = 1_700_000_000_000


def decided(policy: RetryPolicy, failure: Failure, seed: int = 1) -> Decision:
    return decide(policy, failure, NOW_MS, random.Random(seed))


def delay_of(policy: RetryPolicy, failure: Failure) -> int:
    decision = decided(policy, failure)
    assert isinstance(decision, RetryDecision)
    assert decision.due_ms == NOW_MS + decision.delay_ms
    return decision.delay_ms


def reason_of(policy: RetryPolicy, failure: Failure) -> str:
    decision = decided(policy, failure)
    assert isinstance(decision, DeadDecision)
    return decision.reason


def test_max_attempts_counts_all_deliveries_with_the_first() -> None:
    """With max_attempts=3 the second failure is retried, and the third makes a dead letter."""
    policy = RetryPolicy(delay=Fixed(5), max_attempts=3)
    assert delay_of(policy, Failure(attempt=2)) == 5
    assert reason_of(policy, Failure(attempt=3)) == "max-attempts"


def test_one_attempt_means_no_retry() -> None:
    """With max_attempts=1 the first failure makes a dead letter."""
    assert reason_of(RetryPolicy(max_attempts=1), Failure()) == "max-attempts"


def test_a_retry_must_be_due_within_the_age() -> None:
    """A retry may be due exactly at the maximum age, and not a millisecond later."""
    policy = RetryPolicy(delay=Fixed(1_000), max_age_ms=10_000)
    assert delay_of(policy, Failure(first_failed_ms=NOW_MS - 9_000)) == 1_000
    assert reason_of(policy, Failure(first_failed_ms=NOW_MS - 9_001)) == "max-age"


def test_a_first_failure_in_the_future_does_not_extend_the_age() -> None:
    """If the first failure is in the future, by a wrong clock or a forged header, the age starts now."""
    policy = RetryPolicy(delay=Fixed(11_000), max_age_ms=10_000)
    assert reason_of(policy, Failure(first_failed_ms=NOW_MS + 10**9)) == "max-age"


@pytest.mark.parametrize("attempt", [-(10**9), -1, 0])
def test_an_attempt_below_one_counts_as_one(attempt: int) -> None:
    """An attempt number below one counts as one."""
    assert reason_of(RetryPolicy(max_attempts=1), Failure(attempt=attempt)) == "max-attempts"


def test_either_cap_may_be_lifted_but_not_both() -> None:
    """Attempts or age may be unlimited, but not both: otherwise a message could stay in the store for ever."""
    assert delay_of(RetryPolicy(delay=Fixed(1), max_attempts=None), Failure(attempt=10**9)) == 1
    assert delay_of(RetryPolicy(delay=Fixed(1), max_age_ms=None), Failure(first_failed_ms=0)) == 1
    with pytest.raises(ConfigError, match="both unlimited"):
        RetryPolicy(max_attempts=None, max_age_ms=None)


def test_a_fatal_rule_kills_at_once() -> None:
    """A rule with `dead=True` makes a dead letter at the first failure."""
    policy = RetryPolicy(rules=(Rule(errors=("ValueError",), dead=True),))
    failure = Failure(error_class="my.BadInput", error_mro=("builtins.ValueError",))
    assert reason_of(policy, failure) == "fatal"


def test_a_rule_replaces_delay_and_caps() -> None:
    """The settings of a matching rule replace the policy's settings. A setting that the rule lacks is taken from the
    policy."""
    rule = Rule(statuses=(429,), delay=Fixed(77), max_attempts=20, max_age_ms=100)
    policy = RetryPolicy(delay=Fixed(5), max_attempts=2, rules=(rule,))
    assert delay_of(policy, Failure(attempt=19, status=429)) == 77
    assert reason_of(policy, Failure(attempt=20, status=429)) == "max-attempts"
    assert reason_of(policy, Failure(attempt=3, status=429, first_failed_ms=NOW_MS - 50)) == "max-age"
    assert reason_of(policy, Failure(attempt=3, status=500)) == "max-attempts"


def test_the_handlers_dead_verdict_comes_first() -> None:
    """If the handler returns `DeadLetter`, the message is dead, whatever the rules say."""
    policy = RetryPolicy(rules=(Rule(errors=("*",), delay=Fixed(1)),))
    assert reason_of(policy, Failure(error_class="a.B", verdict="dead")) == "verdict"


def test_the_handlers_retry_verdict_beats_a_fatal_rule_but_no_cap() -> None:
    """If the handler returns `Retry`, the message is retried, within the limits of attempts and age."""
    policy = RetryPolicy(delay=Fixed(5), max_attempts=3, rules=(Rule(errors=("*",), dead=True),))
    assert delay_of(policy, Failure(error_class="a.B", verdict="retry")) == 5
    assert reason_of(policy, Failure(attempt=3, error_class="a.B", verdict="retry")) == "max-attempts"


def test_the_handlers_wait_is_taken_exactly() -> None:
    """`Retry(after=...)` replaces the policy's delay, whether shorter or longer."""
    policy = RetryPolicy(delay=Fixed(5_000))
    assert delay_of(policy, Failure(verdict="retry", retry_after_ms=10)) == 10
    assert delay_of(policy, Failure(verdict="retry", retry_after_ms=60_000)) == 60_000


def test_a_remote_retry_after_is_a_minimum() -> None:
    """A server's `Retry-After` can lengthen the policy's delay, but not shorten it."""
    policy = RetryPolicy(delay=Fixed(5_000))
    assert delay_of(policy, Failure(retry_after_ms=0)) == 5_000
    assert delay_of(policy, Failure(retry_after_ms=60_000)) == 60_000


@pytest.mark.parametrize("verdict", [None, "retry"])
def test_a_wait_asked_for_is_bounded(verdict: str | None) -> None:
    """A wait that a handler or server asks for is at most `retry_after_max_ms`."""
    policy = RetryPolicy(delay=Fixed(5), retry_after_max_ms=1_000)
    failure = Failure(verdict=verdict, retry_after_ms=10**15)  # type: ignore[arg-type]
    assert delay_of(policy, failure) == 1_000


def test_a_negative_wait_is_none_at_all() -> None:
    """A negative wait counts as zero."""
    assert delay_of(RetryPolicy(delay=Fixed(5)), Failure(verdict="retry", retry_after_ms=-5)) == 0


def test_the_previous_delay_feeds_decorrelated_jitter() -> None:
    """With decorrelated jitter, the next delay is at most three times the previous delay."""
    decision = decided(RetryPolicy(delay=Decorrelated(10, 10_000)), Failure(attempt=3, previous_delay_ms=1_000))
    assert decision.why.draw is not None
    assert (decision.why.draw.low_ms, decision.why.draw.high_ms) == (10, 3_000)


DELAYS = st.sampled_from([Fixed(1), Linear(), Exponential(), Exponential(jitter="equal"), Decorrelated(), Listed()])
BIG = st.integers(-(2**70), 2**70)


@given(
    delay=DELAYS,
    attempt=BIG,
    first_failed_ms=st.none() | BIG,
    previous_ms=st.none() | BIG,
    retry_after_ms=st.none() | BIG,
    verdict=st.sampled_from([None, "retry", "dead"]),
    seed=st.integers(0, 2**32),
)
def test_no_failure_whatever_breaks_a_limit(
    delay: Delay,
    attempt: int,
    first_failed_ms: int | None,
    previous_ms: int | None,
    retry_after_ms: int | None,
    verdict: str | None,
    seed: int,
) -> None:
    """Whatever the failure's numbers are, no limit is exceeded, no due time is in the past, and there is an
    explanation."""
    policy = RetryPolicy(delay=delay, max_attempts=5, max_age_ms=1_000_000)
    failure = Failure(
        attempt=attempt,
        first_failed_ms=first_failed_ms,
        previous_delay_ms=previous_ms,
        retry_after_ms=retry_after_ms,
        verdict=verdict,  # type: ignore[arg-type]
    )
    decision = decided(policy, failure, seed)
    if isinstance(decision, RetryDecision):
        assert attempt < 5
        assert NOW_MS <= decision.due_ms <= NOW_MS + 1_000_000
    assert explain(decision)
    assert json.loads(json.dumps(decision.why.as_dict()))["policy"] == "default@1"


def test_the_same_seed_decides_the_same() -> None:
    """All random numbers come from the given generator."""
    assert decided(RetryPolicy(), Failure(3), seed=7) == decided(RetryPolicy(), Failure(3), seed=7)
