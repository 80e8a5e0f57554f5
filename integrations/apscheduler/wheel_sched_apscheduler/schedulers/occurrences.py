"""Which runs of a job are due, and when it runs next, without walking through everything it missed.

The stock scheduler steps through every missed occurrence even when it keeps only the last: a week of a one-second
interval is 604,801 steps with the job store locked. Here a coalesced backlog costs O(1) for intervals and O(log time)
for cron. A trigger whose next time depends on the previous one in ways not known here is walked, as stock does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

if TYPE_CHECKING:
    from apscheduler.job import Job
    from apscheduler.triggers.base import BaseTrigger

_CLOSE = timedelta(seconds=2)  # nearer than this the last occurrence is walked to


def due_runs(job: Job, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The run times of `job` up to `now`, only the last one when it coalesces, and its next run time after them.

    `now` is aware, in UTC. A job that is not due has no run times.
    """
    first: datetime | None = job.next_run_time
    if first is None or first > now:
        return [], first
    following = job.trigger.get_next_fire_time(first, now)
    if following is None or following > now:
        return [first], following
    if job.coalesce:
        last = _last_run(job.trigger, following, now)
        return [last], job.trigger.get_next_fire_time(last, now)
    runs = [first]
    while following is not None and following <= now:
        runs.append(following)
        following = job.trigger.get_next_fire_time(following, now)
    return runs, following


def _last_run(trigger: BaseTrigger, known: datetime, now: datetime) -> datetime:
    """The last occurrence up to `now`; `known` is one of them."""
    if type(trigger) is IntervalTrigger:
        return _last_interval(trigger, known, now)
    if _forgetful(trigger):
        known = _search(trigger.get_next_fire_time, known, now)
    while (following := trigger.get_next_fire_time(known, now)) is not None and following <= now:
        known = following
    return known


def _last_interval(trigger: IntervalTrigger, known: datetime, now: datetime) -> datetime:
    length_s = trigger.interval_length
    start_s = known.timestamp()
    end_s = now.timestamp()
    if trigger.end_date is not None:
        end_s = min(end_s, trigger.end_date.timestamp())
    steps = int((end_s - start_s) / length_s)
    if start_s + steps * length_s > end_s:  # the division rounded up
        steps -= 1
    return datetime.fromtimestamp(start_s + steps * length_s, tz=trigger.timezone) if steps > 0 else known


def _search(next_fire: Callable[[datetime, datetime], datetime | None], known: datetime, now: datetime) -> datetime:
    """An occurrence at most `_CLOSE` before the last one up to `now`, by bisection: there is one after a moment, or
    there is none."""
    end = now
    while end - known.astimezone(UTC) > _CLOSE:
        middle = known.astimezone(UTC) + (end - known.astimezone(UTC)) / 2
        found = next_fire(middle, now)
        if found is not None and middle < found <= now:
            known = found
        else:
            end = middle
    return known


def _forgetful(trigger: BaseTrigger) -> bool:
    """Whether the next time is the first match after any moment, whatever ran before it."""
    if type(trigger) in (AndTrigger, OrTrigger):
        return all(_forgetful(part) for part in trigger.triggers)
    return type(trigger) in (CronTrigger, DateTrigger)
