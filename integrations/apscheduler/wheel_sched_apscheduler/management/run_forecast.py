"""When a job will run next, computed from its trigger without running code of its users. Jitter is left out.

An attacker may have stored the trigger. Such a trigger must not keep the reader busy. So a cron trigger is asked for
the next ten years only, and a combination may have few parts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger

from wheel_sched_apscheduler.codec.triggers import is_built_in
from wheel_sched_apscheduler.run_times import from_ms, next_fire_time, to_ms

_YEARS_MS = 3_653 * 86_400_000
_PARTS = 20  # a combination may have this many parts, at all depths together


class Forecast(NamedTuple):
    """The next run times of a job, in epoch ms.

    Args:
        times_ms: the run times, the earliest first.
        more: whether there may be more of them.
        why_not: why no run times, or no more of them, could be computed; "" when there is no such reason.
    """

    times_ms: Sequence[int]
    more: bool = False
    why_not: str = ""


def next_runs(trigger: Any, next_run_time: datetime | None, now_ms: int, limit: int = 10) -> Forecast:
    """The next run times of a job that is not paused, in the ten years after the first.

    Args:
        trigger: its trigger; None when it cannot be read here.
        next_run_time: its next run time; None: it is paused.
        now_ms: the store's time.
        limit: the largest number of run times. Defaults to 10.
    """
    since_ms = now_ms if next_run_time is None else max(now_ms, to_ms(next_run_time))
    return _walk(trigger, next_run_time, limit, since_ms + _YEARS_MS)


def runs_until(trigger: Any, next_run_time: datetime | None, until_ms: int, limit: int) -> Forecast:
    """The run times up to a moment, at most `limit`. See `next_runs`."""
    return _walk(trigger, next_run_time, limit, until_ms)


def _walk(trigger: Any, next_run_time: datetime | None, limit: int, until_ms: int) -> Forecast:
    if next_run_time is None:
        return Forecast((), why_not="it is paused")
    times, moment = [next_run_time], next_run_time
    if to_ms(next_run_time) > until_ms:
        return Forecast(())
    zone = getattr(trigger, "timezone", None)
    if zone is not None:
        moment = moment.astimezone(zone)  # the trigger counts days and hours in its own zone
    bounded = _bounded(trigger, from_ms(until_ms))
    if bounded is None:
        return Forecast([to_ms(next_run_time)], True, "its trigger is not one that can be computed here")
    try:
        while len(times) <= limit:
            following = next_fire_time(bounded, moment, moment)
            if following is None or to_ms(following) > until_ms or following <= moment:
                break
            times.append(following)
            moment = following
    except (ValueError, OverflowError, ArithmeticError, TypeError) as error:
        return Forecast([to_ms(time) for time in times[:limit]], True, f"its trigger fails: {error}")
    return Forecast([to_ms(time) for time in times[:limit]], len(times) > limit)


def _bounded(trigger: Any, until: datetime) -> Any:
    """A copy of the trigger without jitter that stops soon; None when it is not one of APScheduler's, or too large."""
    return _copy(trigger, until) if 0 < _size(trigger) <= _PARTS else None


def _size(trigger: Any) -> int:
    """The number of parts of a trigger. More than `_PARTS`: it has too many, or one of them cannot be computed here."""
    if isinstance(trigger, AndTrigger | OrTrigger):
        if not 0 < len(trigger.triggers) <= _PARTS:
            return _PARTS + 1
        return 1 + sum(map(_size, trigger.triggers))
    return 1 if is_built_in(trigger) else _PARTS + 1


def _copy(trigger: Any, until: datetime) -> Any:
    made = copy.copy(trigger)
    if hasattr(made, "jitter"):
        made.jitter = None
    if isinstance(made, CronTrigger):
        made.end_date = until if made.end_date is None else min(made.end_date, until)
    elif isinstance(made, AndTrigger | OrTrigger):
        made.triggers = [_copy(part, until) for part in made.triggers]
    return made
