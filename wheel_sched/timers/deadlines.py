"""When a timer is due: dates, slack, and recurrence. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Literal

from wheel_sched.errors import ConfigError, Rejected

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Jump(Enum):
    """What a step of the wall clock does to a waiting timer.

    FOLLOW: the timer runs when the wall clock shows its time: sooner after a step forward, later after a step back. The
        timer notices a step within a second. ELAPSE: the timer measures once, when it is scheduled, how long it has to
        wait. It runs when this time has passed, and ignores steps of the clock.
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
    """Check `slack_ms` and return it.

    Raises:
        Rejected: `slack_ms` is not an int of at least 0.
    """
    if type(slack_ms) is not int or slack_ms < 0:
        raise Rejected(
            f"expected slack_ms to be an int of at least 0 (milliseconds), got: {slack_ms!r}; nothing was changed"
        )
    return slack_ms


def coalesced(deadline_ms: int, slack_ms: int) -> int:
    """The roundest moment from `deadline_ms` to `slack_ms` later, so that timers close together share a wake-up.

    The roundest moment is the one that is divisible by the highest power of two. It may be the deadline itself.
    Source: `apply_slack` of the Linux kernel's timer wheel. There the moment is always later than the deadline.
    """
    if deadline_ms <= 0:
        return deadline_ms
    latest_ms = deadline_ms + slack_ms
    # All bits below the highest one in which `deadline_ms - 1` and `latest_ms` differ may be zero.
    zeros = ((deadline_ms - 1) ^ latest_ms).bit_length() - 1
    return latest_ms >> zeros << zeros


class CatchUp(Enum):
    """What a timer with a fixed rate does about missed runs, whose time has passed.

    ALL: it makes all missed runs at once, one after the other. ONCE: it makes a single run at once instead of the
    missed runs, and then keeps the fixed rate. SKIP: it waits for the next regular run.
    """

    ALL = "all"
    ONCE = "once"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Every:
    """How a timer recurs.

    A fixed rate counts from deadline to deadline, so lateness does not add up. A fixed delay counts from the end of a
    run. The timer waits for its next run only when the last one has ended. So its runs overlap only if you
    `reschedule` it during a run.

    Args:
        interval_ms: from deadline to deadline, or from the end of a run to the next deadline; an int of at least 1.
        fixed: "rate" or "delay". Defaults to "rate".
        catch_up: for "rate", what happens to missed runs. Defaults to `CatchUp.ONCE`.

    Raises:
        ConfigError: with all problems of the arguments.
    """

    interval_ms: int
    fixed: Literal["rate", "delay"] = "rate"
    catch_up: CatchUp = CatchUp.ONCE

    def __post_init__(self) -> None:
        problems = []
        if type(self.interval_ms) is not int or self.interval_ms < 1:
            problems.append(
                f"expected interval_ms to be an int of at least 1 (milliseconds), got: {self.interval_ms!r}"
            )
        if self.fixed not in ("rate", "delay"):
            problems.append(f"expected fixed to be 'rate' or 'delay', got: {self.fixed!r}")
        if not isinstance(self.catch_up, CatchUp):
            problems.append(f"expected catch_up to be a member of CatchUp, got: {self.catch_up!r}")
        if problems:
            raise ConfigError(problems)

    def next_ms(self, deadline_ms: int, now_ms: int) -> int:
        """The next deadline, when the run for `deadline_ms` ended at `now_ms`. The next deadline may be in the past."""
        if self.fixed == "delay":
            return now_ms + self.interval_ms
        missed = max(now_ms - deadline_ms, 0) // self.interval_ms
        if self.catch_up is CatchUp.ALL or not missed:
            return deadline_ms + self.interval_ms
        return deadline_ms + (missed + (self.catch_up is CatchUp.SKIP)) * self.interval_ms
