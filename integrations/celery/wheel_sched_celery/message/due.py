"""When a message is due: its `eta` as Celery's workers read it, in milliseconds since 1970.

A value that cannot be read gives None: the message then goes the stock way, and stock says what is wrong with it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@lru_cache(maxsize=16)  # a text is looked at several times on its way
def _plain_ms(text: str) -> int | None:
    """Of a text with its offset, as Celery writes it; None for any other. Takes a tenth of the time."""
    try:
        instant = datetime.fromisoformat(text)
        return None if instant.tzinfo is None else int(-((_EPOCH - instant) // _MS))
    except (ArithmeticError, ValueError):
        return None


def instant_ms(value: Any, timezone: Any) -> int | None:
    """Milliseconds of an ISO 8601 text or datetime, rounded up; naive ones are in `timezone`, as in a worker."""
    if value is None:
        return None
    if isinstance(value, str) and (plain_ms := _plain_ms(value)) is not None:
        return plain_ms
    try:
        instant = maybe_make_aware(maybe_iso8601(value), timezone)
        due_ms = -((_EPOCH - instant) // _MS)
    except (AttributeError, ArithmeticError, TypeError, ValueError):
        return None
    return int(due_ms)


def iso_of(due_ms: int) -> str:
    """The text of an instant as Celery writes it into headers, in UTC."""
    return (_EPOCH + due_ms * _MS).isoformat()
