"""Aware datetimes as instants: integers count, wall clocks do not.

Python compares and subtracts two datetimes of one time zone by their wall clock. In autumn that clock goes back: 02:35
of summer time is earlier than 02:30 of winter time, but Python says later. So this package compares datetimes of jobs
by `to_us` or after `in_utc`. In milliseconds, due times round up and now rounds down, so nothing is ever due early.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_FIRST_MS = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970; exact also before 1970 and for every time zone."""
    delta = moment - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def in_utc(moment: datetime) -> datetime:
    """The same instant on a clock that never goes back."""
    return moment.astimezone(UTC)


def earliest(moments: Iterable[datetime | None]) -> datetime | None:
    """The earliest of these moments, in UTC; None is skipped."""
    return min((in_utc(moment) for moment in moments if moment is not None), default=None)


def to_ms(moment: datetime) -> int:
    """Milliseconds since 1970, rounded up."""
    return -(-to_us(moment) // 1000)


def floor_ms(moment: datetime) -> int:
    """Milliseconds since 1970, rounded down."""
    return to_us(moment) // 1000


def from_us(us: int) -> datetime:
    """The moment in UTC."""
    return EPOCH + us * _US


def from_ms(ms: int) -> datetime:
    """The moment in UTC; the first or last one of the calendar if it lies outside."""
    return EPOCH + timedelta(milliseconds=min(max(ms, _FIRST_MS), _LAST_MS))
