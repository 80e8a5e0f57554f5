"""The run times a job has missed, and the one after them, without walking through each of a coalesced one.

Stock asks the trigger once per missed occurrence and then throws all but the last away: a job of one second that was
down for a week costs 604,801 calls under the scheduler's lock. Here a coalesced interval is divided, and a coalesced
cron schedule is searched backwards from now in steps that double. What the trigger says beyond now ends the search
and is the job's next run time: it need not be asked for that again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import floor
from typing import Any

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from wheel_sched_apscheduler.instants import in_utc, to_us

_NEAR = timedelta(seconds=2)  # fewer missed runs than a search would cost


def missed_runs(job: Any, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The run times of `job` from its next one up to `now`, in order, of a coalesced job the last one alone; and the
    first run time after `now`, None when there is none."""
    now = in_utc(now)
    moment: datetime | None = job.next_run_time
    if moment is None or moment > now:
        return [], moment
    if job.coalesce and now - moment > _NEAR:
        moment = _late_start(job.trigger, moment, now)
    times: list[datetime] = []
    following = job.trigger.get_next_fire_time
    while moment is not None and moment <= now:
        if job.coalesce:
            times = [moment]
        else:
            times.append(moment)
        moment = following(moment, now)
    if moment is not None:
        in_utc(moment)  # raises here, where it is looked for, when no calendar has it
    return times, moment


def _late_start(trigger: Any, first: datetime, now: datetime) -> datetime:
    """A run time from which it is not far to the last one; `first` where that cannot be told."""
    kind = type(trigger)
    if kind is IntervalTrigger and trigger.jitter is None:
        end = min(now.timestamp(), trigger.end_date.timestamp()) if trigger.end_date else now.timestamp()
        steps = floor((end - first.timestamp()) / trigger.interval_length) - 1
        if steps > 0:
            return datetime.fromtimestamp(first.timestamp() + steps * trigger.interval_length, trigger.timezone)
    elif kind is CronTrigger and not trigger.jitter:
        back = timedelta(seconds=1)
        while now - back > first:
            moment = trigger.get_next_fire_time(None, now - back)
            if moment is not None and moment <= now:
                return moment if to_us(moment) > to_us(first) else first
            back *= 2
    return first
