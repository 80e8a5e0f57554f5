"""The explanation of a decision as text."""

from __future__ import annotations

import random

from retry_topic.policy import Decorrelated, Exponential, Failure, Fixed, Listed, RetryPolicy, Rule, decide, explain
from retry_topic.policy.explanation import chosen_by, format_time

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Fives(random.Random):
    """A random generator that always draws the smallest number plus 5."""

    def randint(self, a: int, b: int) -> int:
        return min(a + 5, b)


def explained(policy: RetryPolicy, failure: Failure) -> str:
    return explain(decide(policy, failure, NOW_MS, Fives()))


def test_a_jittered_retry_is_explained_in_full() -> None:
    """The explanation names attempt, formula, drawn delay, due time, age and policy."""
    policy = RetryPolicy("orders", 3, Exponential(), max_age_ms=HOUR_MS)
    assert explained(policy, Failure(3, first_failed_ms=NOW_MS - 12_000)) == (
        "attempt 3 of 8: exponential 1s*2^2=4s, full jitter drew 5ms; due 2023-11-14T22:13:20.005Z; "
        "cap by age not reached (12s of 1h); policy orders@3"
    )


def test_a_capped_curve_says_so() -> None:
    """If the delay is limited by its cap, the text shows the cap."""
    policy = RetryPolicy(delay=Exponential(cap_ms=60_000, jitter="none"), max_attempts=None)
    assert "attempt 1000000000 of unlimited: exponential 1s*2^999999999 capped at 1m;" in explained(
        policy, Failure(10**9)
    )


def test_other_kinds_read_well() -> None:
    """Fixed, listed and decorrelated delays each have their own text."""
    assert ": fixed 1s; due" in explained(RetryPolicy(delay=Fixed()), Failure())
    assert ": list entry 2 of 4=10s; due" in explained(RetryPolicy(delay=Listed()), Failure(2))
    policy = RetryPolicy(delay=Decorrelated())
    assert ": decorrelated jitter uniform(1s, 3*4s) drew 1.005s; due" in explained(
        policy, Failure(2, previous_delay_ms=4_000)
    )


def test_waits_asked_for_name_who_asked_and_their_bound() -> None:
    """The explanation says whether the handler or a server asked for the wait, and whether a limit shortened it."""
    policy = RetryPolicy(delay=Fixed(), retry_after_max_ms=HOUR_MS)
    assert ": the handler asked for 30s; due" in explained(policy, Failure(verdict="retry", retry_after_ms=30_000))
    assert ": fixed 1s, raised by retry-after to 30s; due" in explained(policy, Failure(retry_after_ms=30_000))
    assert "raised by retry-after to 2h, bounded to 1h; due" in explained(policy, Failure(retry_after_ms=2 * HOUR_MS))
    assert ": fixed 1s; due" in explained(policy, Failure(retry_after_ms=500))


def test_the_rule_and_what_it_matched_are_named() -> None:
    """The explanation names the rule's number and name, its pattern, and the class that matched."""
    policy = RetryPolicy(rules=(Rule(errors=("OSError",), name="network", dead=True),))
    failure = Failure(error_class="my.Lost", error_mro=("builtins.OSError",))
    assert explained(policy, failure) == (
        "attempt 1 of 8: dead at once, the error is fatal; rule 1 (network): OSError matched builtins.OSError; "
        "policy default@1"
    )


def test_every_death_has_its_reason() -> None:
    """The explanation says whether verdict, attempts or age made the dead letter. For the age it shows the delay."""
    assert "dead, the handler asked for it" in explained(RetryPolicy(), Failure(verdict="dead"))
    assert "attempt 8 of 8: dead, it was the last attempt allowed" in explained(RetryPolicy(), Failure(8))
    old = Failure(first_failed_ms=NOW_MS - HOUR_MS + 500)
    assert "dead, fixed 1s would pass the cap by age (59m59.5s of 1h gone)" in explained(
        RetryPolicy(delay=Fixed(), max_age_ms=HOUR_MS), old
    )


def test_times_past_the_calendar_are_still_shown() -> None:
    """A time after the year 9999 is shown in milliseconds. A simulated clock may reach it."""
    assert format_time(0) == "1970-01-01T00:00:00.000Z"
    assert format_time(10**18) == "1000000000000000000 ms"


def test_what_chose_a_delay_is_named_in_a_few_words() -> None:
    """The words name the rule and the policy, the handler, or `Retry-After`. For a dead letter they also name the limit
    that was reached.
    """

    def chosen(policy: RetryPolicy, failure: Failure) -> str:
        return chosen_by(decide(policy, failure, NOW_MS, Fives()))

    rules = (Rule(("shop.*",), name="slow"), Rule(("http.*",)), Rule(("db.*",), dead=True))
    policy = RetryPolicy("p", 2, Fixed(), max_attempts=3, rules=rules, spread_ms=1_000)
    assert chosen(policy, Failure()) == "p@2"
    assert chosen(policy, Failure(error_class="shop.Away")) == "rule 1 (slow) of p@2"
    assert chosen(policy, Failure(error_class="http.Away")) == "rule 2 of p@2"
    assert chosen(policy, Failure(retry_after_ms=5_000)) == "Retry-After, p@2"
    assert chosen(policy, Failure(retry_after_ms=5)) == "p@2"
    assert chosen(policy, Failure(verdict="retry", retry_after_ms=5)) == "the handler asked for it"
    assert chosen(policy, Failure(verdict="dead")) == "the handler asked for it"
    assert chosen(policy, Failure(3)) == "max-attempts, p@2"
    assert chosen(policy, Failure(error_class="db.Gone")) == "fatal, rule 3 of p@2"
