"""Which runs of a job the producer may expect, and which it must not see, by what it was told.

A call that adds, reschedules or resumes a job opens a *period*: from then on the job runs at the times of its trigger.
The next such call, a pause and a removal close it. A call whose answer did not come may have been performed or not, at
any time between its begin and its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wheel_sched_apscheduler.simulation.job_world import ToldOfJob
from wheel_sched_apscheduler.simulation.troubles import FOREVER_MS

OPENING = ("add", "reschedule", "resume")
MOVING = (*OPENING, "pause", "remove")


@dataclass(slots=True)
class Period:
    """A job runs at these times. All times are true time in ms.

    Args:
        times: of the trigger, in order.
        possible_from: an earlier time does not run.
        owed_from: this time and later ones run, if the schedule is `owed`.
        owed: whether the producer was told that the job has these times.
        open_until: a later time need not run, because a call that closes the period has begun.
        closed_at: a later time does not run, because the producer was told that the period is over.
        closed_by: the call that has closed it.
        may_close: False if its call may be performed again after its end.
        began_ms: when the call that opens it began.
        told_ms: when that call was answered.
    """

    times: list[int]
    possible_from: int
    owed_from: int
    owed: bool
    open_until: int = FOREVER_MS
    closed_at: int = FOREVER_MS
    closed_by: str = ""
    may_close: bool = True
    began_ms: int = 0
    told_ms: int = 0

    def owed_times(self) -> list[int]:
        """The times that run."""
        return [at for at in self.times if self.owed and self.owed_from <= at < self.open_until]

    def next_after(self, at: int) -> int:
        """The first time after `at`."""
        return min((one for one in self.times if one > at), default=FOREVER_MS)

    def may_run(self, at: int, ahead_ms: int) -> bool:
        """Whether this time may run. A process may be `ahead_ms` ahead of true time."""
        return at in self.times and self.possible_from <= at <= self.closed_at + ahead_ms


def periods_of(calls: Iterable[ToldOfJob], *, clock_known: bool, late: Callable[[ToldOfJob], bool]) -> list[Period]:
    """The periods of one job.

    Args:
        calls: the producer's calls about the job, in order.
        clock_known: whether the clock that a resume counts from shows true time.
        late: whether a request of this call may have arrived at any time after its answer.
    """
    periods: list[Period] = []
    times: list[int] = []
    is_date = False
    for told in calls:
        step = told.step
        done = told.outcome == "done" or (step.action == "add" and told.outcome == "exists")
        if step.action not in MOVING or (not done and not told.doubts and told.outcome != "in doubt"):
            continue
        for period in periods:
            period.open_until = min(period.open_until, told.began_ms)
            if done and period.may_close and told.told_ms < period.closed_at:
                period.closed_at, period.closed_by = told.told_ms, step.action
        if step.action not in OPENING:
            continue
        if step.action != "resume":
            times, is_date = step.run_times(), step.trigger == "date"
        from_now = not is_date and (clock_known or step.action != "resume")
        periods.append(
            Period(
                times,
                told.began_ms if from_now else -FOREVER_MS,
                -FOREVER_MS if is_date else told.told_ms + 1,
                done and (clock_known or step.action != "resume"),
                may_close=not late(told),
                began_ms=told.began_ms,
                told_ms=told.told_ms,
            )
        )
    return periods
