"""Says in words how a policy waits and what its rules do."""

from __future__ import annotations

from retry_topic.policy.delays import Decorrelated, Delay, Fixed, Linear, Listed
from retry_topic.policy.rules import Rule
from wheel_sched.duration import format_duration

_JITTER = {"none": "", "full": ", any part of it", "equal": ", at least half of it"}
_LISTED = 12  # delays that a sentence names


def delay_in_words(delay: Delay) -> str:
    """How long a retry waits, such as `1s, then 2 times as long each time, at most 1h, any part of it`."""
    if isinstance(delay, Decorrelated):
        return (
            f"from {format_duration(delay.base_ms)} to three times the delay before, "
            f"at most {format_duration(delay.cap_ms)}"
        )
    if isinstance(delay, Fixed):
        text = f"{format_duration(delay.base_ms)} each time"
    elif isinstance(delay, Listed):
        first = ", ".join(map(format_duration, delay.delays_ms[:_LISTED]))
        rest = len(delay.delays_ms) - _LISTED
        last = format_duration(delay.delays_ms[-1])
        text = first + (f" and {rest} more" if rest > 0 else "") + f"; then {last} each time"
    else:
        grows = (
            f"{format_duration(delay.step_ms)} longer"
            if isinstance(delay, Linear)
            else f"{delay.factor:g} times as long"
        )
        text = f"{format_duration(delay.base_ms)}, then {grows} each time, at most {format_duration(delay.cap_ms)}"
    return text + _JITTER[delay.jitter]


def rule_in_words(rule: Rule) -> str:
    """What a rule does with the failures that it matches."""
    if rule.dead:
        return "dead at once"
    parts = []
    if rule.delay is not None:
        parts.append(f"waits {delay_in_words(rule.delay)}")
    if rule.max_attempts is not None:
        parts.append(f"at most {rule.max_attempts} deliveries")
    if rule.max_age_ms is not None:
        parts.append(f"within {format_duration(rule.max_age_ms)}")
    return "; ".join(parts) or "as the policy says"
