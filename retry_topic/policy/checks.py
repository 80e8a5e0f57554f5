"""Checks of configured values. Each check returns a list of problems, empty when the value is correct.

Checks never raise and never stop at the first problem, so one `ConfigError` can list every problem at once.
"""

from __future__ import annotations

import re
from typing import Any

from wheel_sched.duration import LONGEST_MS, format_duration

# The legal characters of Kafka topics, so that a policy can have a topic's name; "@" separates `name@version`.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

# `$` is for nested Java classes, `<>` for Python's `<locals>`. Brackets are not allowed: an unclosed one never matches.
_PATTERN = re.compile(r"[\w$<>*?]+(?:\.[\w$<>*?]+)*")

_TITLE = re.compile(r"[\w .:/-]{0,60}")


def is_integer(value: Any) -> bool:
    """Whether `value` is an int. True and False do not count as ints."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_name(field: str, value: Any) -> list[str]:
    """`value` must be a legal topic name."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return []
    return [f"expected {field} to be 1 to 249 of the characters A-Z a-z 0-9 . _ -, got: {value!r}"]


def check_integer(field: str, value: Any, low: int, high: int) -> list[str]:
    """`value` must be an int in `low..high`."""
    if is_integer(value) and low <= value <= high:
        return []
    return [f"expected {field} to be an integer from {low} to {high}, got: {value!r}"]


def check_number(field: str, value: Any, low: float, high: float) -> list[str]:
    """`value` must be an int or float in `low..high` (NaN is not)."""
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return []
    return [f"expected {field} to be a number from {low} to {high}, got: {value!r}"]


def check_tuple(field: str, value: Any) -> list[str]:
    """`value` must be a tuple: a string would be read letter by letter, and a list could change later."""
    return [] if isinstance(value, tuple) else [f"expected {field} to be a tuple, got: {value!r}"]


def check_title(field: str, value: Any) -> list[str]:
    """`value` must be a short plain text that fits in a line of an explanation."""
    if isinstance(value, str) and _TITLE.fullmatch(value):
        return []
    return [f"expected {field} to be up to 60 letters, digits, spaces or . : / _ -, got: {value!r}"]


def check_pattern(field: str, value: Any) -> list[str]:
    """`value` must be a class name, with `*` and `?` as wildcards."""
    if isinstance(value, str) and _PATTERN.fullmatch(value):
        return []
    return [f"expected {field} to be a class name or a pattern such as requests.*, got: {value!r}"]


def check_duration(field: str, value: Any, low_ms: int = 0) -> list[str]:
    """`value` must be whole milliseconds in `low_ms..LONGEST_MS`."""
    if not is_integer(value):
        return [f"expected {field} to be whole milliseconds, got: {value!r}"]
    if low_ms <= value <= LONGEST_MS:
        return []
    bounds = f"from {format_duration(low_ms)} to {format_duration(LONGEST_MS)}"
    return [f"expected {field} to be {bounds}, got: {format_duration(value)}"]


def check_choice(field: str, value: Any, choices: tuple[str, ...]) -> list[str]:
    """`value` must be one of `choices`."""
    if isinstance(value, str) and value in choices:
        return []
    return [f"expected {field} to be one of {', '.join(choices)}, got: {value!r}"]
