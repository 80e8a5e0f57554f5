"""From what callers give to whole milliseconds on a clock: pure functions, each rounding up (never early)."""

from __future__ import annotations

import math
import operator
from typing import Any

from wheel_sched.errors import Rejected

NS_PER_MS = 1_000_000


def deadline_after(now_ns: int, delay_ms: Any) -> int:
    """The first whole ms that is not before `now_ns` + `delay_ms`; a delay below 0 counts as 0.

    Args:
        now_ns: a clock's reading, in nanoseconds.
        delay_ms: an int of any size, something with `__index__`, or a finite float.

    Raises:
        Rejected: `delay_ms` is none of these.
    """
    if type(delay_ms) is int:
        return (delay_ms if delay_ms > 0 else 0) - (-now_ns // NS_PER_MS)
    if isinstance(delay_ms, float) and math.isfinite(delay_ms):
        whole_ms = math.floor(delay_ms)  # apart, for the product of a huge float and 1e6 would overflow
        delay_ns = whole_ms * NS_PER_MS + math.ceil((delay_ms - whole_ms) * NS_PER_MS)
        return -(-(now_ns + max(delay_ns, 0)) // NS_PER_MS)
    if not isinstance(delay_ms, bool | float):
        try:
            return deadline_after(now_ns, operator.index(delay_ms))
        except TypeError:
            pass
    raise Rejected(f"expected delay_ms to be a finite number (milliseconds), got: {delay_ms!r}; nothing was changed")


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
    """The roundest moment from `deadline_ms` to `slack_ms` later, so that timers nearby meet in one wake-up.

    Round means: divisible by the highest power of two. Source: `apply_slack` of the Linux kernel's timer wheel, which
    misses a deadline that is the roundest itself.
    """
    if deadline_ms <= 0:
        return deadline_ms
    latest_ms = deadline_ms + slack_ms
    # Up to the highest bit in which the moment before the span differs from its end, all may be zero.
    zeros = ((deadline_ms - 1) ^ latest_ms).bit_length() - 1
    return latest_ms >> zeros << zeros
