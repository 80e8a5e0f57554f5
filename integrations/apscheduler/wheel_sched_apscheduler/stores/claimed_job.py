"""ClaimedJob: a job as it is handed to a stock scheduler. It notes for its occurrence what the scheduler does with it.

A `Job` has slots and no room for more, but its class may differ. This one
- notes the run times that the scheduler takes, so that ends can be matched with them;
- of a coalesced job, gives only the last missed run time, without asking the trigger for each;
- asks the trigger once a pass, and repeats its answer when the scheduler asks again. A trigger that raises would end a
  stock scheduler's loop: the occurrence keeps the error, and nothing runs;
- runs the function with `current_occurrence()` set, in a pool of threads, an event loop or a pool of processes.

What is stored, listed or looked up is a plain `Job`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from typing import Any

from apscheduler.job import Job

from wheel_sched_apscheduler.occurrence import Occurrence, reset_current, set_current
from wheel_sched_apscheduler.run_times import missed_runs

_STATE = (
    "_jobstore_alias",
    "_scheduler",
    "args",
    "coalesce",
    "executor",
    "func",
    "func_ref",
    "id",
    "kwargs",
    "max_instances",
    "misfire_grace_time",
    "name",
    "next_run_time",
    "trigger",
)


class Answered:
    """A trigger that repeats its answer: a second answer may differ from the first, or be an error."""

    __slots__ = ("_following", "trigger")

    def __init__(self, trigger: Any, following: datetime | None) -> None:
        self.trigger = trigger
        self._following = following

    def get_next_fire_time(self, _: datetime | None, __: datetime) -> datetime | None:
        """The answer that the trigger gave."""
        return self._following

    def __str__(self) -> str:
        return str(self.trigger)

    def __repr__(self) -> str:
        return repr(self.trigger)


class ClaimedJob(Job):
    """A job in the hands of a stock scheduler; `occurrence` is what was claimed."""

    __slots__ = ("fixed", "occurrence", "plain_func")

    occurrence: Occurrence
    fixed: list[datetime] | None  # run times that are already decided
    func: Any
    plain_func: Any  # `func`, without `current_occurrence()` set

    def _get_run_times(self, now: datetime) -> list[datetime]:
        occurrence: Occurrence = self.occurrence
        job: Any = self  # a slot of the base class
        if self.fixed is not None:  # it was handed out before: its run times are decided
            run_times, following = self.fixed, occurrence.next_run_time
        else:
            try:
                run_times, following = missed_runs(self, now)
            except Exception as error:  # the scheduler's loop would end; the store learns of it at the end of the pass
                occurrence.trigger_error = error
                return []
        if run_times:
            job.trigger = Answered(job.trigger, following)
        return occurrence.run_at(run_times)

    def __getstate__(self) -> dict[str, Any]:
        running, self.func = self.func, self.plain_func
        try:
            state: dict[str, Any] = super().__getstate__()
        finally:
            self.func = running
        occurrence = self.occurrence
        if type(self.trigger) is Answered:
            state["trigger"] = self.trigger.trigger
        state["occurrence"] = (
            occurrence.job_id,
            occurrence.scheduled,
            occurrence.token,
            occurrence.redelivered,
            occurrence.run_times,
        )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process of a pool: the occurrence, as far as the job's code may see it."""
        super().__setstate__(state)
        job_id, scheduled, token, redelivered, run_times = state["occurrence"]
        self.occurrence = Occurrence(self, job_id, scheduled, token, redelivered)
        self.occurrence.run_at(run_times)
        self.fixed = None
        self.plain_func = self.func
        self.func = with_current_occurrence(self.occurrence, self.func, self.misfire_grace_time)


def claimed_copy(job: Any, token: int, grace_s: int | None) -> ClaimedJob:
    """A copy of `job` to hand to a scheduler, with an occurrence of its own.

    Args:
        job: a plain job with a next run time.
        token: fencing token.
        grace_s: the grace that its executor is to apply.
    """
    copy = ClaimedJob.__new__(ClaimedJob)
    for name in _STATE:
        setattr(copy, name, getattr(job, name))
    copy.misfire_grace_time = grace_s
    return with_occurrence(copy, token)


def with_occurrence(
    job: ClaimedJob, token: int, *, redelivered: bool = False, fixed: list[datetime] | None = None
) -> ClaimedJob:
    """Give a new `ClaimedJob` its occurrence, and return the job."""
    job.occurrence = Occurrence(job, job.id, job.next_run_time, token, redelivered)
    job.fixed = fixed
    job.plain_func = job.func
    job.func = with_current_occurrence(job.occurrence, job.func, job.misfire_grace_time)
    return job


def with_current_occurrence(
    occurrence: Occurrence, func: Callable[..., Any], grace_s: int | None
) -> Callable[..., Any]:
    """`func`, run with `current_occurrence()` set to the run time whose turn it is."""
    turn = 0

    def begin() -> Any:
        nonlocal turn
        times = occurrence.run_times or [occurrence.scheduled]
        run_time = times[min(turn, len(times) - 1)]
        if grace_s is not None:  # the executor skips run times that it finds too late, without a word
            oldest = datetime.now(UTC) - timedelta(seconds=grace_s)
            while run_time < oldest and turn < len(times) - 1:
                turn += 1
                run_time = times[turn]
        turn += 1
        occurrence.mark_started()
        return set_current(occurrence.job_id, run_time, occurrence.token, occurrence.redelivered)

    if iscoroutinefunction(func):

        async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
            mark = begin()
            try:
                return await func(*args, **kwargs)
            finally:
                reset_current(mark)

        return run_coroutine

    def run(*args: Any, **kwargs: Any) -> Any:
        mark = begin()
        try:
            return func(*args, **kwargs)
        finally:
            reset_current(mark)

    return run
