"""Aware datetimes and whole milliseconds: due times round up, now rounds down, so nothing is ever due early."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970, exact also before it and for every time zone."""
    delta = moment - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


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
    """The moment in UTC."""
    return EPOCH + timedelta(milliseconds=ms)
