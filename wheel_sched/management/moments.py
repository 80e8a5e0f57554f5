"""When a change takes effect, as people ask for it: an instant, a duration from now, or a pace.

The command line, the search language and the dashboard read such values here. Some of them accept more forms.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store.core.items import MAX_DUE_MS

MOST_A_SECOND = 1e6
"""The highest rate of changes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant_ms(text: str, zone: tzinfo | None = None) -> int:
    """Epoch milliseconds of an RFC 3339 instant, rounded up so that nothing is early.

    Args:
        text: such as "2030-01-01T06:00:00Z".
        zone: the time zone of a text that names none. Defaults to None: such a text is refused.

    Raises:
        ConfigError: the text is no instant, has no time zone, or lies outside 1970 to 9999.
    """
    try:
        at = datetime.fromisoformat(text.strip())
        at = at if at.tzinfo or zone is None else at.replace(tzinfo=zone)
        at_ms = -((_EPOCH - at) // timedelta(milliseconds=1))  # a TypeError without a time zone
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(
            f"expected an instant with a time zone, such as 2030-01-01T06:00:00Z, got: {text[:60]!r}"
        ) from error
    if not 0 <= at_ms <= MAX_DUE_MS:
        raise ConfigError(f"expected an instant after 1970 and before the year 10000, got: {text[:60]!r}")
    return at_ms


def check_moment(after: object, at: object, *, dashes: str = "") -> None:
    """Check that a request says when in exactly one way.

    Args:
        after: the duration from now; None: not given.
        at: the instant; None: not given.
        dashes: the prefix of both names in the error, such as "--". Defaults to "".

    Raises:
        Rejected: neither is given, or both.
    """
    if after is None and at is None:
        raise Rejected(f"When? Give {dashes}in or {dashes}at; nothing was changed.")
    if after is not None and at is not None:
        raise Rejected(f"Give {dashes}in or {dashes}at, not both; nothing was changed.")


def moment_ms(after_ms: int | None, at_ms: int | None, now_ms: int) -> int:
    """The moment that a request names, epoch ms.

    Args:
        after_ms: the time from now on; None: not given.
        at_ms: the instant; None: not given.
        now_ms: the store's time, epoch ms.

    Raises:
        Rejected: see `check_moment`.
    """
    check_moment(after_ms, at_ms)
    return at_ms if at_ms is not None else now_ms + (after_ms or 0)


def check_pace(rate: float | None, spread_ms: int | None) -> None:
    """Check how a request spreads its changes: at a rate, over a time span, or (with neither) all at once.

    Args:
        rate: about this many changes a second; None: not given.
        spread_ms: the changes are spread over this time; None: not given.

    Raises:
        Rejected: both are given, or the rate is not above 0 and at most a million a second.
    """
    if rate is not None and spread_ms is not None:
        raise Rejected("give a rate or a spread, not both: nothing was changed")
    if rate is not None and not 0 < rate <= MOST_A_SECOND:
        most = f"{MOST_A_SECOND:,.0f}"
        raise Rejected(f"expected a rate above 0 and at most {most} a second, got: {rate!r}; nothing was changed")
