"""Rules: settings that replace the policy's for some failures. Only the first rule that matches applies.

A rule names error classes, HTTP statuses, or both (then both must match). A pattern without a dot is compared with
the simple name (`TimeoutError`, `*Timeout`), one with a dot with the full name (`requests.*`, `builtins.OSError`);
`*` and `?` are wildcards. The class itself is compared first, then its parents, as in `except`. Case matters.

Cost: rules x patterns x parents string matches, all on names bounded by the header limits. The functions are pure, so
any thread may call them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from retry_topic.policy.checks import check_duration, check_integer, check_pattern, check_title, check_tuple
from retry_topic.policy.delays import Delay, check_delay
from retry_topic.policy.failure import Failure
from wheel_sched.errors import ConfigError

MAX_ATTEMPTS = 1_000_000  # headers are clamped to it too; a larger count is a typing error

_STATUS = re.compile(r"([1-5])xx|([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?")


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings for some failures.

    Args:
        errors: patterns of error class names; one match is enough. Defaults to none.
        statuses: HTTP statuses as `429`, `"5xx"` or `"500-503"`; one match is enough. Defaults to none.
        name: shown in explanations. Defaults to "".
        dead: dead-letter at once, no retry. Defaults to False.
        delay: another kind of delay. Defaults to None (the policy's).
        max_attempts: another cap by count. Defaults to None (the policy's).
        max_age_ms: another cap by age. Defaults to None (the policy's).
    """

    errors: tuple[str, ...] = ()
    statuses: tuple[int | str, ...] = ()
    name: str = ""
    dead: bool = False
    delay: Delay | None = None
    max_attempts: int | None = None
    max_age_ms: int | None = None

    def __post_init__(self) -> None:
        if problems := check_tuple("errors", self.errors) + check_tuple("statuses", self.statuses):
            raise ConfigError(problems)  # their entries cannot be checked
        if not self.errors and not self.statuses:
            problems.append("expected at least one error pattern or status, got: none")
        for pattern in self.errors:
            problems += check_pattern("error", pattern)
        problems += [
            f'expected status to be 100 to 599, "5xx" or "500-503", got: {status!r}'
            for status in self.statuses
            if status_range(status) is None
        ]
        problems += check_title("name", self.name)
        if self.delay is not None:
            problems += check_delay(self.delay)
        if self.max_attempts is not None:
            problems += check_integer("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        if self.max_age_ms is not None:
            problems += check_duration("max_age", self.max_age_ms)
        given = {"delay": self.delay, "max_attempts": self.max_attempts, "max_age": self.max_age_ms}
        if self.dead and (useless := [key for key, value in given.items() if value is not None]):
            problems.append(f"expected a rule with dead = true to have no retry settings, got: {', '.join(useless)}")
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class Match:
    """Why a rule applies.

    Args:
        number: position of the rule in its policy, from 1.
        rule: the rule.
        pattern: the error pattern or status of the rule that matched.
        subject: the class name or the status of the failure, as text.
    """

    number: int
    rule: Rule
    pattern: str
    subject: str


def first_match(rules: Sequence[Rule], failure: Failure) -> Match | None:
    """The first rule that matches the failure, and why; None if no rule matches."""
    for number, rule in enumerate(rules, 1):
        error = _error_match(rule.errors, failure)
        status = _status_match(rule.statuses, failure.status)
        if (rule.errors and error is None) or (rule.statuses and status is None):
            continue
        found = [match for match in (error, status) if match is not None]
        return Match(number, rule, " and ".join(p for p, _ in found), " and ".join(s for _, s in found))
    return None


def status_range(status: int | str) -> tuple[int, int] | None:
    """The least and the greatest status of a spec such as `"5xx"`; None when the spec is invalid."""
    match = _STATUS.fullmatch(str(status)) if not isinstance(status, bool) else None
    if match is None:
        return None
    family, low, high = match.groups()
    if family:
        return int(family) * 100, int(family) * 100 + 99
    bounds = int(low), int(high or low)
    return bounds if bounds[0] <= bounds[1] else None


def _error_match(patterns: Sequence[str], failure: Failure) -> tuple[str, str] | None:
    for full_name in (failure.error_class, *failure.error_mro):
        simple_name = full_name.rpartition(".")[2]
        for pattern in patterns:
            if full_name and fnmatchcase(full_name if "." in pattern else simple_name, pattern):
                return pattern, full_name
    return None


def _status_match(statuses: Sequence[int | str], status: int | None) -> tuple[str, str] | None:
    if status is None:
        return None
    for spec in statuses:
        bounds = status_range(spec)
        if bounds is not None and bounds[0] <= status <= bounds[1]:
            return str(spec), str(status)
    return None
