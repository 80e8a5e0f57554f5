"""Writes policies as TOML, and computes their content hash. `load_policies` reads the same policies back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from retry_topic.policy.delays import KINDS, Delay
from retry_topic.policy.fair import Fair
from retry_topic.policy.flow import Breaker, Budget
from retry_topic.policy.model import PolicySet, RetryPolicy
from retry_topic.policy.rules import Rule
from retry_topic.policy.schema import DELAY_KEYS, OFF, UNLIMITED, place_of
from wheel_sched.duration import format_duration


def dump_policies(policies: PolicySet) -> str:
    """The policies as TOML text, without some keys that are off or not set.

    `load_policies(dump_policies(p)) == p` if the weights of fair keys are in the order of the keys.
    """
    blocks = [_policy(policies.default, ("default",))]
    default_once = policies.default.once_per_key is not None
    blocks += [_policy(policy, ("topic", topic), default_once) for topic, policy in policies.topics.items()]
    return "\n".join(blocks)


def content_hash(policy: RetryPolicy) -> str:
    """A hash of the policy: 12 hex characters that differ after every change, also when the version stays the same."""
    return blake2b(_policy(policy, ("default",)).encode(), digest_size=6).hexdigest()


def _policy(policy: RetryPolicy, place: tuple[str, ...], says_off: bool = False) -> str:
    """A policy as TOML. `says_off`: say that collapse and debounce are off, because the default has one of them."""
    lines = [
        f"[{place_of(*place)}]",
        f"name = {_text(policy.name)}",
        f"version = {policy.version}",
        f"max_attempts = {_text(UNLIMITED) if policy.max_attempts is None else policy.max_attempts}",
        f"max_age = {_text(UNLIMITED) if policy.max_age_ms is None else _duration(policy.max_age_ms)}",
        f"retry_after_max = {_duration(policy.retry_after_max_ms)}",
        f"delay = {_delay(policy.delay)}",
        f"spread = {_duration(policy.spread_ms)}",
        f"rate = {_text(UNLIMITED if policy.rate is None else str(policy.rate))}",
        f"burst = {policy.burst}",
        f"budget = {_budget(policy.budget)}",
        f"breaker = {_breaker(policy.breaker)}",
        *_once_per_key(policy, says_off),
    ]
    if policy.fair is not None:
        lines.append(f"fair = {_fair(policy.fair)}")
    if not policy.rules:
        lines.append("rule = []")  # explicit: without the key a topic inherits the default's rules
    for rule in policy.rules:
        lines += ["", f"[[{place_of(*place, 'rule')}]]", *_rule(rule)]
    return "\n".join(lines) + "\n"


def _rule(rule: Rule) -> Iterator[str]:
    if rule.name:
        yield f"name = {_text(rule.name)}"
    if rule.errors:
        yield f"error = [{', '.join(_text(pattern) for pattern in rule.errors)}]"
    if rule.statuses:
        yield f"status = [{', '.join(str(s) if isinstance(s, int) else _text(s) for s in rule.statuses)}]"
    if rule.dead:
        yield "dead = true"
    if rule.max_attempts is not None:
        yield f"max_attempts = {rule.max_attempts}"
    if rule.max_age_ms is not None:
        yield f"max_age = {_duration(rule.max_age_ms)}"
    if rule.delay is not None:
        yield f"delay = {_delay(rule.delay)}"


def _budget(budget: Budget | None) -> str:
    if budget is None:
        return _text(OFF)
    return f"{{ share = {_text(f'{budget.percent}%')}, least = {_text(str(budget.least))} }}"


def _breaker(breaker: Breaker | None) -> str:
    if breaker is None:
        return _text(OFF)
    return (
        f"{{ failures = {_text(f'{breaker.percent}%')}, of = {breaker.of}, within = {_duration(breaker.within_ms)}, "
        f"open = {_duration(breaker.open_ms)}, by = {_text(breaker.by)} }}"
    )


def _once_per_key(policy: RetryPolicy, says_off: bool) -> Iterator[str]:
    if policy.collapse is not None:
        yield f"collapse = {{ key = {_text(str(policy.collapse.key))} }}"
    if policy.debounce is not None:
        wait = _duration(policy.debounce.max_wait_ms)
        yield f"debounce = {{ key = {_text(str(policy.debounce.key))}, max_wait = {wait} }}"
    if policy.once_per_key is None and says_off:
        yield f"collapse = {_text(OFF)}"
        yield f"debounce = {_text(OFF)}"


def _fair(fair: Fair) -> str:
    weights = ", ".join(f"{_text(name)} = {weight!r}" for name, weight in fair.weights)
    return (
        f"{{ key = {_text(fair.key)}, weights = {{ {weights} }}, default_weight = {fair.default_weight!r}, "
        f"max_in_flight = {fair.max_in_flight}, in_flight_timeout = {_duration(fair.in_flight_timeout_ms)}, "
        f"rate = {_text(UNLIMITED if fair.rate is None else str(fair.rate))} }}"
    )


def _delay(delay: Delay) -> str:
    kind = next(kind for kind, cls in KINDS.items() if type(delay) is cls)
    pairs = [f"kind = {_text(kind)}"]
    for key, (field, key_type) in DELAY_KEYS[kind].items():
        pairs.append(f"{key} = {_value(getattr(delay, field), key_type)}")
    return "{ " + ", ".join(pairs) + " }"


def _value(value: Any, key_type: str) -> str:
    if key_type == "duration":
        return _duration(value)
    if key_type == "durations":
        return f"[{', '.join(_duration(ms) for ms in value)}]"
    return repr(value) if key_type == "number" else _text(value)


def _duration(delay_ms: int) -> str:
    return _text(format_duration(delay_ms))


def _text(text: str) -> str:
    # a JSON string is a TOML string, but TOML knows no surrogate pairs, and no bare U+007F
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
