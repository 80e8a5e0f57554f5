"""The times in the arguments of an action: `in`, `at` and `spread`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from wheel_sched.dashboard.parts import Arguments
from wheel_sched.duration import parse_duration
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store.core.items import MAX_DUE_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def spread_of(arguments: Arguments) -> int | None:
    """The argument `spread` in milliseconds; None when it is not given.

    Raises:
        Rejected: it is no duration; nothing was changed.
    """
    return _duration(arguments, "spread")


def delay_of(arguments: Arguments) -> int | None:
    """The argument `in` in milliseconds; None when it is not given.

    Raises:
        Rejected: it is no duration; nothing was changed.
    """
    return _duration(arguments, "in")


def start_of(arguments: Arguments, now_ms: int) -> int:
    """The due time that the arguments `in` or `at` name, epoch ms.

    Args:
        arguments: the arguments of the action.
        now_ms: the store's time, epoch ms.

    Raises:
        Rejected: none of the two is given, or both, or it cannot be read; nothing was changed.
    """
    delay_ms, text = delay_of(arguments), arguments.get("at")
    if (delay_ms is None) == (text is None):
        raise Rejected("expected either in or at: nothing was changed; say when the messages are due")
    if delay_ms is not None:
        return now_ms + delay_ms
    try:
        at = datetime.fromisoformat(str(text).strip())
        at_ms = -1 if at.tzinfo is None else -((_EPOCH - at) // timedelta(milliseconds=1))
    except (ValueError, OverflowError):
        at_ms = -1
    if not 0 <= at_ms <= MAX_DUE_MS:
        raise Rejected(
            f"expected at to be an instant with a time zone, such as 2030-01-01T06:00:00Z, got: {text!r:.60}; nothing "
            "was changed"
        )
    return at_ms


def _duration(arguments: Arguments, name: str) -> int | None:
    text = arguments.get(name)
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ConfigError as error:
        raise Rejected(f"{name}: {error}; nothing was changed") from error
