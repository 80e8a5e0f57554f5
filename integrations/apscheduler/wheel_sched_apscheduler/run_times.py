"""The run times a job has missed, and the one after them, without walking through each of a coalesced one.

Stock asks the trigger once per missed occurrence and then throws all but the last away: a job of one second that was
down for a week costs 604,801 calls under the scheduler's lock. Here a coalesced interval is divided, and a coalesced
cron schedule is searched backwards from now in steps that double. What the trigger says beyond now ends the search
and is the job's next run time: it need not be asked for that again.

A pass hands over `RUN_TIMES_AT_MOST` run times of a job. What a job that is not coalesced has missed beyond them is one
run, the last: an interval of a microsecond has 10^12 run times in ten days, which no memory holds.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import floor
from typing import Any

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from wheel_sched.escaping import logger_of
from wheel_sched_apscheduler.asking import next_fire_time
from wheel_sched_apscheduler.instants import in_utc, to_us

RUN_TIMES_AT_MOST = 10_000
_NEAR = timedelta(seconds=2)  # fewer missed runs than a search would cost
_US = timedelta(microseconds=1)
_logger = logger_of(__name__)


def missed_runs(job: Any, now: datetime, *, quiet: bool = False) -> tuple[list[datetime], datetime | None]:
    """The run times of `job` from its next one up to `now`, in order, of a coalesced job the last one alone; and the
    first run time after `now`, None when there is none. At most `RUN_TIMES_AT_MOST`, see the module; `quiet` = do not
    log that there were more.

    Raises:
        ValueError: asked again and again, the trigger says no run time after now.
    """
    now = in_utc(now)
    moment: datetime | None = job.next_run_time
    if moment is None or moment > now:
        return [], moment
    if job.coalesce and now - moment > _NEAR:
        moment = _late_start(job.trigger, moment, now)
    times, moment = _walk(job.trigger, moment, now, job.coalesce)
    if moment is not None and moment <= now:
        rest, moment = _walk(job.trigger, _near_end(job.trigger, moment, now), now, True)
        if moment is not None and moment <= now and to_us(moment) <= to_us(rest[-1]):
            raise ValueError(f"the trigger says no run time after now, but {moment} again and again")
        times[-1:] = rest
        if not job.coalesce and not quiet:
            _logger.warning(
                "Job %r has missed more than %d run times since %s: so many are handed over, the rest as one run; "
                "coalesce=True makes one of all",
                job.id,
                RUN_TIMES_AT_MOST,
                times[0],
            )
    if moment is not None:
        in_utc(moment)  # raises here, where it is looked for, when no calendar has it
    return times, moment


def _walk(trigger: Any, moment: datetime | None, now: datetime, coalesce: bool) -> tuple[list[datetime], Any]:
    """The run times from `moment` up to `now`, and the one that follows: not yet after now when there are too many."""
    times: list[datetime] = []
    for _ in range(RUN_TIMES_AT_MOST):
        if moment is None or moment > now:
            break
        if coalesce:
            times = [moment]
        else:
            times.append(moment)
        moment = next_fire_time(trigger, moment, now)
    return times, moment


def _near_end(trigger: Any, first: datetime, now: datetime) -> datetime:
    """The same as `_late_start` of any trigger, at the price of a few more questions."""
    start = _late_start(trigger, first, now)
    back = _US
    while start is first and back < now - first:
        moment = next_fire_time(trigger, None, now - back)
        if moment is not None and first < moment <= now:
            start = moment
        back *= 2
    return start


def _late_start(trigger: Any, first: datetime, now: datetime) -> datetime:
    """A run time from which it is not far to the last one; `first` where that cannot be told."""
    kind = type(trigger)
    if kind is IntervalTrigger and trigger.jitter is None:
        end = min(now.timestamp(), trigger.end_date.timestamp()) if trigger.end_date else now.timestamp()
        steps = floor((end - first.timestamp()) / trigger.interval_length) - 1
        if steps > 0:
            start = datetime.fromtimestamp(first.timestamp() + steps * trigger.interval_length, trigger.timezone)
            if start <= now:  # far from 1970 a float has no microseconds
                return start
    elif kind is CronTrigger and not trigger.jitter:
        back = timedelta(seconds=1)
        while back < now - first:
            moment = trigger.get_next_fire_time(None, now - back)
            if moment is not None and moment <= now:
                return moment if to_us(moment) > to_us(first) else first
            back *= 2
    return first
