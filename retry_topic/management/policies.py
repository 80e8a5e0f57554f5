"""Retry policies: which one applies to a topic, and what it does in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retry_topic.management.opening import policies_of
from retry_topic.management.settings import RetrySettings
from retry_topic.policy import RetryPolicy, format_duration
from retry_topic.policy.dumping import dump_policies
from retry_topic.policy.fair import fair_in_words
from retry_topic.policy.flow import describe
from retry_topic.policy.model import PolicySet


@dataclass(frozen=True, slots=True)
class DescribedPolicy:
    """A policy in words.

    Args:
        policy: its name and version.
        lines: its settings and rules, one line each.
        toml: the policy as TOML, as a policy file has it.
    """

    policy: str
    lines: Sequence[str]
    toml: str

    def as_dict(self) -> dict[str, Any]:
        """The description as data for JSON."""
        return {"policy": self.policy, "text": list(self.lines), "toml": self.toml}


def chosen_policy(settings: RetrySettings, file: str | None = None, topic: str | None = None) -> RetryPolicy:
    """The policy of a topic.

    Args:
        settings: name the policy file when `file` is None.
        file: a TOML file. Defaults to None: the file in the settings, or without one the built-in policy.
        topic: the topic. Defaults to None: the default policy of the file.

    Raises:
        ConfigError: the file has mistakes. The error lists each of them.
    """
    policies = policies_of(settings, file)
    return policies.default if topic is None else policies.for_topic(topic)


def described_policy(chosen: RetryPolicy) -> DescribedPolicy:
    """Describe the settings and rules of a policy in words."""
    attempts = "any number of" if chosen.max_attempts is None else str(chosen.max_attempts)
    age = "for ever" if chosen.max_age_ms is None else format_duration(chosen.max_age_ms)
    lines = [
        f"policy {chosen.ident}: a failed message is delivered {attempts} times in all, within {age}, then it is dead",
        f"a wait that a handler or Retry-After asks for is granted up to {format_duration(chosen.retry_after_max_ms)}",
    ]
    lines += describe(chosen.rate, chosen.burst, chosen.spread_ms, chosen.budget, chosen.breaker)
    if chosen.once_per_key is not None:
        lines.append(chosen.once_per_key.words)
    lines += [] if chosen.fair is None else fair_in_words(chosen.fair)
    for number, rule in enumerate(chosen.rules, 1):
        name = f" ({rule.name})" if rule.name else ""
        what = "dead at once" if rule.dead else "its own delay or caps"
        patterns = ", ".join(map(str, (*rule.errors, *rule.statuses)))
        lines.append(f"rule {number}{name}: {patterns}: {what}")
    return DescribedPolicy(chosen.ident, lines, dump_policies(PolicySet(chosen)))
