"""Asking a trigger for its next run time, so that the answer comes.

APScheduler's AndTrigger asks its parts again and again until they agree. With a previous run time each part answers as
before, so parts that differ once never agree, and the loop that asked stands still with the scheduler's lock held.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apscheduler.triggers.combining import AndTrigger, OrTrigger

ROUNDS_AT_MOST = 10_000


def next_fire_time(trigger: Any, previous: datetime | None, now: datetime) -> Any:
    """What `trigger.get_next_fire_time` says.

    Raises:
        ValueError: its parts never agree.
    """
    kind = type(trigger)
    if kind is AndTrigger:
        return trigger._apply_jitter(_agreed(trigger.triggers, previous, now), trigger.jitter, now)
    if kind is OrTrigger:
        times = [next_fire_time(part, previous, now) for part in trigger.triggers]
        earliest = min((time for time in times if time is not None), default=None)
        return trigger._apply_jitter(earliest, trigger.jitter, now)
    return trigger.get_next_fire_time(previous, now)


def _agreed(parts: Any, previous: datetime | None, now: datetime) -> Any:
    before: list[Any] = []
    for _ in range(ROUNDS_AT_MOST):
        times = [next_fire_time(part, previous, now) for part in parts]
        if None in times:
            return None
        if min(times) == max(times):
            return times[0]
        if times == before:
            break
        before, now = times, max(times)
    raise ValueError(f"the parts of the and-trigger never agree on a run time after {previous or now}")
