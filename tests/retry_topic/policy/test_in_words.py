"""Delays and rules in words."""

from __future__ import annotations

import pytest

from retry_topic.policy import Decorrelated, Delay, Exponential, Fixed, Linear, Listed, Rule
from retry_topic.policy.in_words import delay_in_words, rule_in_words


@pytest.mark.parametrize(
    ("delay", "words"),
    [
        (Fixed(2_000), "2s each time"),
        (Fixed(2_000, "equal"), "2s each time, at least half of it"),
        (Linear(1_000, 500, 60_000), "1s, then 500ms longer each time, at most 1m"),
        (Exponential(1_000, 2.5, 60_000), "1s, then 2.5 times as long each time, at most 1m, any part of it"),
        (Decorrelated(1_000, 60_000), "from 1s to three times the delay before, at most 1m"),
        (Listed((1_000, 60_000)), "1s, 1m; then 1m each time"),
        (Listed((1_000,) * 13 + (2_000,)), "1s, " * 11 + "1s and 2 more; then 2s each time"),
    ],
)
def test_each_kind_of_delay_has_words(delay: Delay, words: str) -> None:
    """The words name the numbers, the cap and the jitter of the delay."""
    assert delay_in_words(delay) == words


def test_a_rule_says_what_it_does() -> None:
    """The words name what the rule replaces. For a rule that replaces nothing, they say so."""
    assert rule_in_words(Rule(errors=("A",), dead=True)) == "dead at once"
    assert rule_in_words(Rule(errors=("A",))) == "as the policy says"
    everything = Rule(errors=("A",), delay=Fixed(1_000), max_attempts=3, max_age_ms=60_000)
    assert rule_in_words(everything) == "waits 1s each time; at most 3 deliveries; within 1m"
