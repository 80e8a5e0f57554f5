"""Computes from the answers that the producer got which runs of a job must take place, and which must not.

A call that adds, reschedules or resumes a job opens a *period*: from then on the job runs at the times of its trigger.
The next call that opens a period closes the one before, and so does a pause or a removal. A call without an answer may
have taken effect at any time after its beginning, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wheel_sched_apscheduler.simulation.job_world import JobAnswer
from wheel_sched_apscheduler.simulation.troubles import FOREVER_MS

OPENING = ("add", "reschedule", "resume")
MOVING = (*OPENING, "pause", "remove")


@dataclass(slots=True)
class Period:
    """A span in which a job runs at the times of one trigger. All times are true time in ms.

    Args:
        times: the run times of the trigger, in order.
        possible_from: no run time before this moment may run.
        owed_from: each run time from this moment on must run, if the period is `owed`.
        owed: whether the producer got the answer that the job has these times.
        open_until: a run time at or after this moment need not run, because a call that closes the period has begun.
        closed_at: no run time after this moment may run, because the producer has the answer of the closing call.
        closed_by: the action of the closing call.
        may_close: False if the call that opened the period may take effect again after the period was closed.
        began_ms: when the call that opens the period began.
        answered_ms: when the producer got the answer of that call.
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
    answered_ms: int = 0

    def owed_times(self) -> list[int]:
        """The times that must run."""
        return [at for at in self.times if self.owed and self.owed_from <= at < self.open_until]

    def next_after(self, at: int) -> int:
        """The first run time after `at`; `FOREVER_MS` if there is none."""
        return min((one for one in self.times if one > at), default=FOREVER_MS)

    def may_run(self, at: int, ahead_ms: int) -> bool:
        """Whether this run time may run. A process's clock may be `ahead_ms` ahead of true time."""
        return at in self.times and self.possible_from <= at <= self.closed_at + ahead_ms


def periods_of(calls: Iterable[JobAnswer], *, clock_known: bool, late: Callable[[JobAnswer], bool]) -> list[Period]:
    """Compute the periods of one job.

    Args:
        calls: the producer's calls about the job, in order.
        clock_known: whether a resume computes the next run time from a clock that shows true time.
        late: returns whether a call's request may still reach the store after the producer has the call's answer.
    """
    periods: list[Period] = []
    times: list[int] = []
    is_date = False
    for answer in calls:
        step = answer.step
        done = answer.outcome == "done" or (step.action == "add" and answer.outcome == "exists")
        if step.action not in MOVING or (not done and not answer.doubts and answer.outcome != "in doubt"):
            continue
        for period in periods:
            period.open_until = min(period.open_until, answer.began_ms)
            if done and period.may_close and answer.answered_ms < period.closed_at:
                period.closed_at, period.closed_by = answer.answered_ms, step.action
        if step.action not in OPENING:
            continue
        if step.action != "resume":
            times, is_date = step.run_times(), step.trigger == "date"
        from_now = not is_date and (clock_known or step.action != "resume")
        periods.append(
            Period(
                times,
                answer.began_ms if from_now else -FOREVER_MS,
                -FOREVER_MS if is_date else answer.answered_ms + 1,
                done and (clock_known or step.action != "resume"),
                may_close=not late(answer),
                began_ms=answer.began_ms,
                answered_ms=answer.answered_ms,
            )
        )
    return periods
