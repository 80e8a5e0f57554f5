"""Checks of arguments, which both cores use before they change anything."""

from __future__ import annotations

import sys
from typing import Any

from wheel_sched.errors import ConfigError, Rejected


def check_shape(now_ms: Any, tick_ms: Any, wheel_size: Any) -> None:
    """Check the arguments of a new wheel.

    Raises:
        ConfigError: with all problems: a start before 0, a tick below 1 ms, a size that is not a power of two from 2
            up.
    """
    problems = []
    if type(now_ms) is not int or now_ms < 0:
        problems.append(f"expected now_ms to be an int of at least 0 (milliseconds), got: {now_ms!r}")
    if type(tick_ms) is not int or tick_ms < 1:
        problems.append(f"expected tick_ms to be an int of at least 1 (milliseconds), got: {tick_ms!r}")
    if type(wheel_size) is not int or wheel_size < 2 or wheel_size & (wheel_size - 1):
        problems.append(f"expected wheel_size to be a power of two of at least 2, got: {wheel_size!r}")
    if problems:
        raise ConfigError(problems)


def whole(name: str, value: Any) -> int:
    """`value` as a plain int; a subclass of int, such as an IntEnum, is converted.

    Raises:
        Rejected: `value` is not an int, or is a bool.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise Rejected(f"expected {name} to be an int (milliseconds), got: {value!r}; nothing was changed")


def batch_limit(limit: Any) -> int:
    """How many entries `advance` may hand out; None means no limit.

    Raises:
        Rejected: `limit` is neither None nor a positive int.
    """
    if limit is None:
        return sys.maxsize
    if type(limit) is not int or limit < 1:
        raise Rejected(f"expected limit to be None or an int of at least 1, got: {limit!r}; nothing was handed out")
    return min(limit, sys.maxsize)
