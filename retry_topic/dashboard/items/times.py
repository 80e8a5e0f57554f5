"""Reads the times and the pace in the arguments of an action: `in`, `at`, `spread` and `rate`."""

from __future__ import annotations

from retry_topic.management.changing import ChangePace
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.duration import parse_duration
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.management.moments import check_moment, instant_ms, moment_ms


def spread_of(arguments: Arguments) -> int | None:
    """The argument `spread` in milliseconds; None when it is not given.

    Raises:
        Rejected: the argument is no duration; nothing was changed.
    """
    return _duration(arguments, "spread")


def delay_of(arguments: Arguments) -> int | None:
    """The argument `in` in milliseconds; None when it is not given.

    Raises:
        Rejected: the argument is no duration; nothing was changed.
    """
    return _duration(arguments, "in")


def pace_of(arguments: Arguments) -> ChangePace:
    """How fast changed messages become due, as the argument `rate` or `spread` says. Without both: all at once.

    Raises:
        Rejected: both are given, or one cannot be read or is out of bounds; nothing was changed.
    """
    text = arguments.get("rate")
    try:
        rate = None if text is None else float(text)
    except ValueError as error:
        raise Rejected(f"expected rate to be a number, got: {text!r:.40}; nothing was changed") from error
    return ChangePace(rate, spread_of(arguments))


def start_of(arguments: Arguments, now_ms: int) -> int:
    """The due time that the arguments `in` or `at` name, epoch ms.

    Args:
        arguments: the arguments of the action.
        now_ms: the store's time, epoch ms.

    Raises:
        Rejected: neither or both of them are given, or the given one cannot be read; nothing was changed.
    """
    check_moment(arguments.get("in"), arguments.get("at"))
    at = arguments.get("at")
    try:
        at_ms = None if at is None else instant_ms(str(at))
    except ConfigError as error:
        raise Rejected(f"at: {error}; nothing was changed") from error
    return moment_ms(delay_of(arguments), at_ms, now_ms)


def _duration(arguments: Arguments, name: str) -> int | None:
    text = arguments.get(name)
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ConfigError as error:
        raise Rejected(f"{name}: {error}; nothing was changed") from error
