"""What callers of a timer may say about a deadline besides a delay: a date and time, and slack. Pure functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from wheel_sched.errors import Rejected

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Jump(Enum):
    """What a step of the wall clock does to a waiting timer.

    FOLLOW: the timer runs when the wall clock shows its time: sooner after a step forward, later after a step back.
    The timer notices a step within a second. ELAPSE: the timer runs after as much time as lay ahead when it was
    scheduled, and ignores steps.
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


def slack_of(slack_ms: Any) -> int:
    """`slack_ms` checked.

    Raises:
        Rejected: it is not an int of at least 0.
    """
    if type(slack_ms) is not int or slack_ms < 0:
        raise Rejected(
            f"expected slack_ms to be an int of at least 0 (milliseconds), got: {slack_ms!r}; nothing was changed"
        )
    return slack_ms


def coalesced(deadline_ms: int, slack_ms: int) -> int:
    """The roundest moment from `deadline_ms` to `slack_ms` later, so that timers close together share a wake-up.

    Round means: divisible by a high power of two. Source: `apply_slack` of the Linux kernel's timer wheel, which
    moves on even when the deadline itself is the roundest moment.
    """
    if deadline_ms <= 0:
        return deadline_ms
    latest_ms = deadline_ms + slack_ms
    # All bits below the highest one in which `deadline_ms - 1` and `latest_ms` differ may be zero.
    zeros = ((deadline_ms - 1) ^ latest_ms).bit_length() - 1
    return latest_ms >> zeros << zeros
