"""The hour that the clock shows for the second time, when daylight saving ends.

Celery leaves this hour out: an entry for every 5 minutes pauses for an hour. If Celery's beat starts in this hour, it
sends such an entry again and again without a pause, until the hour is over. Here a crontab for every hour runs in this
hour too. All other crontabs run the first time only, as in Celery.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, NamedTuple

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_HOURS: Final = 24
_NEAR_MS: Final = 3 * 3_600_000  # longer than an hour and the largest change of a clock


class RepeatedHour(NamedTuple):
    """Begin and end of the hour, in ms since 1970, and the offset of its local time from UTC."""

    begin_ms: int
    end_ms: int
    offset: timedelta


def runs_every_hour(value: Any) -> bool:
    """Whether a crontab runs in all hours of the day."""
    return len(value.hour) == _HOURS


def repeated_hour(zone: tzinfo, last_ms: int) -> RepeatedHour | None:
    """The repeated hour around `last_ms`, or within three hours after it; None when there is none."""
    before_ms, after_ms = last_ms - _NEAR_MS, last_ms + _NEAR_MS
    before, after = _offset(zone, before_ms), _offset(zone, after_ms)
    if before <= after:
        return None
    while after_ms - before_ms > 1:
        middle_ms = (before_ms + after_ms) // 2
        if _offset(zone, middle_ms) <= after:
            after_ms = middle_ms
        else:
            before_ms = middle_ms
    end_ms = after_ms + (before - after) // _MS
    return RepeatedHour(after_ms, end_ms, after) if last_ms < end_ms else None


def _offset(zone: tzinfo, at_ms: int) -> timedelta:
    return (_EPOCH + at_ms * _MS).astimezone(zone).utcoffset() or timedelta()
