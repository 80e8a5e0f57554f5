"""Deadlines that people name: a date and a time, and what becomes of them when the wall clock is set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from wheel_sched.errors import Rejected

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Jump(Enum):
    """What a step of the wall clock does to a waiting timer.

    FOLLOW: it runs when the wall clock shows its time, however that came about: sooner after a step forward, later
    after one back. A step is noticed within a second. ELAPSE: it runs after as much time as lay ahead when it was
    scheduled; steps are ignored.
    """

    FOLLOW = "follow"
    ELAPSE = "elapse"


def wall_deadline(when: Any) -> int:
    """`when` in ms since 1970-01-01 UTC, rounded up.

    Raises:
        Rejected: `when` is not a datetime, or has no time zone.
    """
    if not isinstance(when, datetime) or when.utcoffset() is None:
        raise Rejected(f"expected when to be a datetime with a time zone, got: {when!r}; nothing was scheduled")
    return -((EPOCH - when) // timedelta(milliseconds=1))
