"""Computes when a schedule of Celery is due next, and which of its occurrences were missed.

Celery's schedules compute "how long until the run after `last_run_at`" from the present time. Here they get `last` as
the present time, so the answer depends on nothing but schedule and `last`. Celery's code decides about time zones and
daylight saving. There is one difference, see `repeated_hour`.

The functions are pure, so any thread may call them, also with one schedule at the same time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Final

from celery.schedules import crontab, schedule, solar

from wheel_sched.errors import Rejected
from wheel_sched_celery.beat.repeated_hour import repeated_hour, runs_every_hour

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_MINUTE_MS: Final = 60_000
_STEPS: Final = 200  # of a minute each, to get past a clock that was put back
COUNTED: Final = 1_000  # missed occurrences are counted up to this number
ASK_AGAIN_S: Final = 300  # Celery's beat looks at all schedules so often


def is_plain(value: Any) -> bool:
    """Whether the next due time depends on the last one alone.

    This holds for Celery's own classes. A class of an app may use other values. So a worker calls its `is_due` again
    and again, as Celery's beat does.
    """
    return type(value) in (schedule, crontab, solar) and value.nowfun is None


def next_due_ms(value: Any, last_ms: int) -> int:
    """The first due time after `last_ms`, in ms since 1970.

    Args:
        value: a schedule of Celery (see `is_plain`).
        last_ms: the last due time, or when the entry was added.

    Raises:
        Rejected: the schedule has no later time.
    """
    if _is_steady(value):
        return last_ms + _every_ms(value)
    from_ms = last_ms
    for _ in range(_STEPS):
        due_ms = _after(value, from_ms)
        if due_ms > last_ms:
            return due_ms
        from_ms += _MINUTE_MS  # the clock was put back, so the next local time is not after `last`
    raise Rejected(f"the schedule {value!r} has no time after {_EPOCH + last_ms * _MS}; nothing was changed")


def _is_steady(value: Any) -> bool:
    """Whether a schedule is an interval that counts from the last due time.

    Celery rounds other intervals to whole units.
    """
    return type(value) is schedule and (not value.relative or value.run_every < timedelta(seconds=1))


def _every_ms(value: Any) -> int:
    return max(1, int(value.run_every / _MS))


def _after(value: Any, last_ms: int) -> int:
    due_ms = _by_celery(value, last_ms, value.tz)
    if type(value) is not crontab or not runs_every_hour(value):
        return due_ms
    hour = repeated_hour(value.tz, last_ms)
    if hour is None or last_ms < due_ms < hour.begin_ms:
        return due_ms
    again_ms = _by_celery(value, max(last_ms, hour.begin_ms - 1), timezone(hour.offset))
    return again_ms if again_ms < hour.end_ms else _by_celery(value, hour.end_ms - 1, value.tz)


def _by_celery(value: Any, last_ms: int, zone: tzinfo) -> int:
    last = (_EPOCH + last_ms * _MS).astimezone(zone)
    frozen = _at(value, lambda: last)
    frozen.tz = zone
    try:
        due = last.astimezone(UTC) + frozen.remaining_estimate(last)
    except (ArithmeticError, RuntimeError, ValueError) as error:
        raise Rejected(f"the schedule {value!r} has no time after {last}: {error}; nothing was changed") from error
    return int(-((_EPOCH - due) // _MS))


def _at(value: Any, now: Callable[[], datetime]) -> Any:
    """A copy of a schedule that takes the present time from `now`."""
    kind: Any = type(value)
    frozen = kind.__new__(kind)  # `copy` would parse a crontab again
    frozen.__dict__.update(value.__dict__)
    frozen.nowfun = now
    return frozen


def first_due_ms(value: Any, now_ms: int, last_ms: int | None = None) -> int:
    """The first due time of an entry that is new or has a new schedule.

    An interval counts from the last run, as in Celery. If it is over, the entry is due now. All other schedules begin
    after `now_ms`. Example: somebody changes "at 4" to "at 5" when it is 6 o'clock. The entry runs tomorrow at 5.
    """
    if _is_steady(value) and last_ms is not None:
        return max(now_ms, next_due_ms(value, last_ms))
    return next_due_ms(value, now_ms)


@dataclass(frozen=True, slots=True)
class Due:
    """The occurrences of an entry that are due now.

    Args:
        dues_ms: the last due times up to now, `limit` at most, the earliest first.
        dropped: how many due times came before these, counted up to `COUNTED`.
        next_ms: the first due time after now.
    """

    dues_ms: tuple[int, ...]
    dropped: int
    next_ms: int


def due_until(value: Any, first_ms: int, now_ms: int, limit: int) -> Due:
    """The last occurrences between `first_ms` and `now_ms`, `limit` at most.

    The cost hardly grows with the time between the two: a few times `COUNTED` steps at most.

    Args:
        value: a schedule of Celery (see `is_plain`).
        first_ms: the first due time.
        now_ms: the present time, not before `first_ms`.
        limit: how many occurrences are wanted at most, from 1 up.
    """
    if _is_steady(value):
        every_ms = _every_ms(value)
        count = (now_ms - first_ms) // every_ms + 1
        kept = range(max(0, count - limit), count)
        dues = tuple(first_ms + number * every_ms for number in kept)
        return Due(dues, min(COUNTED, count - len(dues)), first_ms + count * every_ms)
    dues_ms, next_ms = _walk(value, first_ms, now_ms, COUNTED + limit)
    if next_ms <= now_ms:  # too many to walk through: look back from now, farther and farther
        back_ms, found = 1_000, 0
        while found < limit:
            dues_ms, next_ms = _walk(value, next_due_ms(value, max(first_ms, now_ms - back_ms)), now_ms, sys.maxsize)
            found, back_ms = len(dues_ms), 2 * back_ms
        return Due(tuple(dues_ms[-limit:]), COUNTED, next_ms)
    return Due(tuple(dues_ms[-limit:]), min(COUNTED, max(0, len(dues_ms) - limit)), next_ms)


def _walk(value: Any, first_ms: int, now_ms: int, most: int) -> tuple[list[int], int]:
    """The first `most` due times from `first_ms` (itself one) to `now_ms`, and the due time after these."""
    dues_ms: list[int] = []
    at_ms = first_ms
    while at_ms <= now_ms and len(dues_ms) < most:
        dues_ms.append(at_ms)
        at_ms = next_due_ms(value, at_ms)
    return dues_ms, at_ms


def next_runs(value: Any, first_ms: int, count: int) -> list[int]:
    """`first_ms` and the due times after it, `count` in all. A schedule that is not plain has only the first."""
    runs = [first_ms][:count]
    while is_plain(value) and len(runs) < count:
        runs.append(next_due_ms(value, runs[-1]))
    return runs


def ask(value: Any, last_ms: int, now: Callable[[], datetime] | None = None) -> tuple[bool, int]:
    """Ask a schedule that is not plain whether it is due now, as Celery's beat does.

    Args:
        value: a schedule of the app's own class, or one with a `nowfun`.
        last_ms: when it ran last, or when its entry was added.
        now: the present time, for a schedule without a `nowfun`. Defaults to that of the app.

    Returns:
        Whether it is due, and in how many ms to ask again: what the schedule says, or 5 minutes if it says nothing
        of use.

    Raises:
        Exception: whatever the class of the app raises.
    """
    if now is not None and getattr(value, "nowfun", None) is None:
        value = _at(value, now)
    last = (_EPOCH + last_ms * _MS).astimezone(value.tz)
    due, again_s = value.is_due(last)
    if isinstance(again_s, timedelta):
        again_s = again_s.total_seconds()
    if isinstance(again_s, bool) or not isinstance(again_s, int | float) or not 0 < again_s < 1e10:
        again_s = ASK_AGAIN_S
    return bool(due), max(1, round(again_s * 1000))
