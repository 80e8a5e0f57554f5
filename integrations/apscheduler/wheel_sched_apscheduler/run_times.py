"""Run times: how to compare them, how to ask a trigger for them, and when a run counts as missed.

*Comparing.* Python compares and subtracts two datetimes of one time zone by their wall clock. In autumn that clock goes
back: 02:35 of summer time is earlier than 02:30 of winter time, but Python says later. So this package compares run
times as integers (`to_us`) or in UTC (`in_utc`). In milliseconds, due times are rounded up and the present time is
rounded down, so nothing is due early.

*Missed runs.* If `coalesce` is set, stock APScheduler asks the trigger for each missed run time and then drops all but
the last. For a job that runs each second, a week of downtime costs 604,801 calls under the scheduler's lock.
`missed_runs` asks less often. It first finds a run time close to the last missed one: for an interval trigger by a
division, for a cron trigger by a search backwards from now in steps that double. (Any other trigger, and one with
jitter, it first asks for up to `RUN_TIMES_AT_MOST` run times.) From there it asks the trigger for later run times,
until one is after now. That is the next run time of the job.

A pass hands out at most `RUN_TIMES_AT_MOST` run times of a job. If a job without `coalesce` has missed more, the oldest
of them run, and one run at the last missed run time replaces the others. An interval of a microsecond has 10^12 run
times in ten days, too many for any memory.

*Asking a trigger.* APScheduler's AndTrigger asks its parts for a run time again and again until all give the same one.
It passes a later `now` each time. But a part that gets a previous run time computes its answer from that time, and so
gives the same answer again. If the first answers differ, AndTrigger loops for ever, and holds the scheduler's lock.
`next_fire_time` raises an error instead.

*Misfires.* Stock APScheduler compares the lateness of a run with `misfire_grace_time` when a worker of the executor
takes the run. So the time in the executor's queue counts as lateness. With APScheduler's default of one second, most
jobs of a burst are dropped. Unless `misfire` is "stock", this package measures the lateness once, when it claims the
job. A job that is claimed in time runs. If a shared job is put back instead, its lateness is measured from the time to
which it was put back.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from math import floor
from typing import Any, Literal

from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from wheel_sched.escaping import logger_of

Misfire = Literal["lenient", "claim", "stock"]
MISFIRES: tuple[Misfire, ...] = ("lenient", "claim", "stock")
STOCK_GRACE_S = 1  # APScheduler's default, not a choice of the user
RUN_TIMES_AT_MOST = 10_000
ROUNDS_AT_MOST = 10_000  # within this many rounds the parts of an and-trigger must agree
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEAR = timedelta(seconds=2)  # for a shorter time, a search costs more than asking for each missed run
_US = timedelta(microseconds=1)
_FIRST_MS = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
_logger = logger_of(__name__)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970; exact also before 1970 and for every time zone."""
    delta = moment - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def in_utc(moment: datetime) -> datetime:
    """The same instant in UTC, where the clock never goes back."""
    return moment.astimezone(UTC)


def earliest(moments: Iterable[datetime | None]) -> datetime | None:
    """The earliest of these moments, in UTC. Values of None are skipped."""
    return min((in_utc(moment) for moment in moments if moment is not None), default=None)


def to_ms(moment: datetime) -> int:
    """Milliseconds since 1970, rounded up. Use it for due times."""
    return -(-to_us(moment) // 1000)


def floor_ms(moment: datetime) -> int:
    """Milliseconds since 1970, rounded down. Use it for the present time."""
    return to_us(moment) // 1000


def from_us(us: int) -> datetime:
    """The moment that is `us` microseconds after 1970, in UTC."""
    return EPOCH + us * _US


def from_ms(ms: int) -> datetime:
    """The moment that is `ms` milliseconds after 1970, in UTC. Limited to the years that a datetime can have."""
    return EPOCH + timedelta(milliseconds=min(max(ms, _FIRST_MS), _LAST_MS))


def missed_runs(job: Any, now: datetime, *, quiet: bool = False) -> tuple[list[datetime], datetime | None]:
    """The run times of `job` that were missed until `now`, and the first run time after `now`.

    Args:
        job: an APScheduler job. The search starts at its next run time.
        now: run times up to this moment count as missed.
        quiet: whether to log no warning about more than `RUN_TIMES_AT_MOST` run times. Defaults to False.

    Returns:
        The missed run times in order, for a coalesced job only the last one. And the first run time after `now`; None
        if the trigger has no more.

    Raises:
        ValueError: the trigger gives no run time after now, however often it is asked.
        Exception: any error that the trigger raises.
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
            raise ValueError(f"the trigger gives {moment} again and again, and no run time after now")
        times[-1:] = rest
        if not job.coalesce and not quiet:
            _logger.warning(
                "Job %r has missed more than %d run times since %s: it runs only this often, and the last run replaces "
                "all later ones; with coalesce=True one run replaces all",
                job.id,
                RUN_TIMES_AT_MOST,
                times[0],
            )
    if moment is not None:
        in_utc(moment)  # raises here for a moment that no calendar has, because the caller expects the error here
    return times, moment


def _walk(trigger: Any, moment: datetime | None, now: datetime, coalesce: bool) -> tuple[list[datetime], Any]:
    """The run times from `moment` up to `now` (if `coalesce`, only the last), and the run time after them.

    Stops after `RUN_TIMES_AT_MOST` run times. The run time after them may then be earlier than `now`.
    """
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
    """A run time close to the last missed one, for any trigger. May ask the trigger more often than `_late_start`."""
    start = _late_start(trigger, first, now)
    back = _US
    while start is first and back < now - first:
        moment = next_fire_time(trigger, None, now - back)
        if moment is not None and first < moment <= now:
            start = moment
        back *= 2
    return start


def _late_start(trigger: Any, first: datetime, now: datetime) -> datetime:
    """A run time close to the last missed one; `first` if this trigger offers no quick way to find one."""
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


def next_fire_time(trigger: Any, previous: datetime | None, now: datetime) -> Any:
    """Call `trigger.get_next_fire_time`, without its endless loop for an AndTrigger whose parts never agree.

    Raises:
        ValueError: the parts of an AndTrigger never agree.
    """
    kind = type(trigger)
    if kind is AndTrigger:
        return trigger._apply_jitter(_agreed(trigger.triggers, previous, now), trigger.jitter, now)
    if kind is OrTrigger:
        times = [next_fire_time(part, previous, now) for part in trigger.triggers]
        first = min((time for time in times if time is not None), default=None)
        return trigger._apply_jitter(first, trigger.jitter, now)
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


def lateness_until(claimed_at: datetime, misfire: Misfire) -> datetime | None:
    """The moment up to which the lateness of a job's run times is measured; None: until the executor begins each run.

    `claimed_at`: the time of the claim.
    """
    return None if misfire == "stock" else claimed_at


def chosen_grace(job: Any, misfire: Misfire) -> int | None:
    """The job's misfire grace time in seconds; None: it runs at any lateness. See `grace_after_claim` for `misfire`."""
    grace_s: int | None = job.misfire_grace_time
    return None if misfire == "lenient" and grace_s == STOCK_GRACE_S else grace_s


def grace_after_claim(job: Any, now: datetime, misfire: Misfire) -> int | None:
    """The grace that the executor must apply to a job claimed at `now`; None = run it at any lateness.

    Args:
        job: an APScheduler job that has a next run time.
        now: time of the claim.
        misfire: when the lateness is measured. "claim": at the claim. A job that is claimed within its grace runs. If
            it is claimed later, its run times beyond the grace are MISSED. "lenient": as "claim", but a grace of 1 s,
            APScheduler's default, counts as None. "stock": when a worker of the executor takes the job.
    """
    grace_s = chosen_grace(job, misfire)
    if grace_s is None or misfire == "stock":
        return grace_s
    return None if to_us(now) - to_us(job.next_run_time) <= grace_s * 1_000_000 else grace_s
