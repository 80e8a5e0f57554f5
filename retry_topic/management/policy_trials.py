"""Tries policies: simulates what they do, explains decisions, and compares policies over the recorded attempts.

These functions change nothing. They do not store the policy that they try.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from retry_topic.history import CANNOT_KNOW, LATEST, WhatIf, latest_attempts, what_if
from retry_topic.management.policies import DescribedPolicy, described_policy
from retry_topic.policy import (
    DeadDecision,
    Decision,
    Failure,
    PolicySet,
    RetryPolicy,
    Simulation,
    chosen_by,
    decide,
    explain,
    load_policies,
    simulate,
)
from retry_topic.policy.in_words import delay_in_words, rule_in_words
from wheel_sched.errors import ConfigError
from wheel_sched.store import DelayStore

LONGEST_TOML = 4_096  # characters of the longest policy that can be tried
STEPS = 30
_SAMPLES = 100


@dataclass(frozen=True, slots=True)
class RuleInWords:
    """A rule of a policy: its number from 1, its name, the errors and statuses that it matches, and what it does."""

    number: int
    name: str
    errors: Sequence[str]
    statuses: Sequence[str]
    does: str


@dataclass(frozen=True, slots=True)
class PolicyPicture:
    """What the dashboard shows about a policy.

    Args:
        topic: the topic to which the policy belongs; None for the default policy of all other topics.
        policy: the policy.
        described: the policy's settings in words, and as TOML.
        delay: how long retries wait, in words.
        rules: the policy's rules.
        steps: what happens to messages that always fail with an error that no rule matches, for at most 30 failures.
    """

    topic: str | None
    policy: RetryPolicy
    described: DescribedPolicy
    delay: str
    rules: Sequence[RuleInWords]
    steps: Simulation

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "topic": self.topic,
            **self.described.as_dict(),
            "max_attempts": self.policy.max_attempts,
            "max_age_ms": self.policy.max_age_ms,
            "delay": self.delay,
            "rules": [asdict(rule) for rule in self.rules],
            "steps": self.steps.as_dict()["steps"],
        }


@dataclass(frozen=True, slots=True)
class ExplainedDecision:
    """What a policy decides about a failure, and why.

    Args:
        decision: the decision.
        text: the reasons in words.
        chosen_by: the part of the policy that chose the delay, or why the message is dead, in a few words.
    """

    decision: Decision
    text: str
    chosen_by: str

    @property
    def dead(self) -> bool:
        """Whether the message is given up."""
        return isinstance(self.decision, DeadDecision)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        decision = self.decision
        dead = isinstance(decision, DeadDecision)
        return {
            "decision": "dead" if dead else "retry",
            "reason": decision.reason if isinstance(decision, DeadDecision) else None,
            "due_ms": None if isinstance(decision, DeadDecision) else decision.due_ms,
            "text": self.text,
            "chosen_by": self.chosen_by,
            "why": decision.why.as_dict(),
        }


def pictures(policies: PolicySet, most: int) -> list[PolicyPicture]:
    """The pictures of the default policy and then of the topics' policies, in order of topic; at most `most`."""
    found: list[tuple[str | None, RetryPolicy]] = [(None, policies.default), *sorted(policies.topics.items())]
    return [picture(topic, policy) for topic, policy in found[:most]]


def picture(topic: str | None, policy: RetryPolicy) -> PolicyPicture:
    """The picture of a policy, always the same. The first call simulates some thousand decisions; it is then cached."""
    rules = [
        RuleInWords(number, rule.name, rule.errors, tuple(map(str, rule.statuses)), rule_in_words(rule))
        for number, rule in enumerate(policy.rules, 1)
    ]
    steps = outlook(policy, "", None)
    return PolicyPicture(topic, policy, described_policy(policy), delay_in_words(policy.delay), rules, steps)


def explained_decision(policy: RetryPolicy, failure: Failure, now_ms: int, rng: random.Random) -> ExplainedDecision:
    """What the policy decides about a failure, and why."""
    decision = decide(policy, failure, now_ms, rng)
    return ExplainedDecision(decision, explain(decision), chosen_by(decision))


@lru_cache(maxsize=256)  # a policy object does not change, and pages show it often
def outlook(policy: RetryPolicy, error_class: str, status: int | None) -> Simulation:
    """What happens to messages that always fail with this error, for at most 30 failures."""
    return simulate(policy, STEPS, _SAMPLES, error_class=error_class, status=status)


def policies_of_text(text: str) -> PolicySet:
    """The policies in a TOML text. The text is never read as the name of a file.

    Raises:
        ConfigError: the text is too long or has mistakes. The error lists each mistake.
    """
    text = text.replace("\r\n", "\n")  # browsers send CRLF in forms
    if len(text) > LONGEST_TOML:
        raise ConfigError(f"expected policies of at most {LONGEST_TOML:,} characters, got: {len(text):,}")
    return load_policies(text + "\n")  # `load_policies` takes a text without a line break for a path


@dataclass(frozen=True, slots=True)
class HistoryComparison:
    """A comparison of policies with the latest recorded attempts.

    Args:
        found: the comparison.
        unreadable: how many entries of the history this release cannot read.
        most: about the greatest number of attempts that are read.
        cannot_know: sentences about what such a comparison cannot know.
    """

    found: WhatIf
    unreadable: int
    most: int = LATEST
    cannot_know: Sequence[str] = CANNOT_KNOW

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**self.found.as_dict(), "unreadable": self.unreadable, "most": self.most}


def compared_with_history(store: DelayStore, present: PolicySet, edited: PolicySet) -> HistoryComparison:
    """Compare the present and the edited policies over the latest 5,000 or so recorded attempts of a store.

    Raises:
        StoreError: the store cannot be reached.
    """
    latest = latest_attempts(store)
    return HistoryComparison(what_if(latest.rows, present, edited), latest.unreadable)
