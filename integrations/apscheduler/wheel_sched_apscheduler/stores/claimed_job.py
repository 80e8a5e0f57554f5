"""ClaimedJob: the job as it is handed to a scheduler, which tells its fire what the scheduler does with it.

A `Job` has slots and no room for anything, but its class may differ. This one
- notes the run times the scheduler takes, so that ends can be matched with them;
- asks a trigger for all missed run times only when each is to run: of a coalesced job just the last is handed out;
- asks it once a pass: a trigger that raises ends a stock scheduler's loop, so its fire is told and nothing is run, and
  what it said of the next run is said again when the scheduler asks;
- runs the function with `current_fire()` set, in a pool of threads, an event loop or a pool of processes.

The stored job never becomes one: what is persisted, listed or looked up is a plain `Job`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from typing import Any

from apscheduler.job import Job

from wheel_sched_apscheduler.occurrence import Fire, enter, leave
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
    """A trigger that was asked what comes next, and says it again: another answer may differ, or be an error."""

    __slots__ = ("_following", "trigger")

    def __init__(self, trigger: Any, following: datetime | None) -> None:
        self.trigger = trigger
        self._following = following

    def get_next_fire_time(self, _: datetime | None, __: datetime) -> datetime | None:
        """What followed."""
        return self._following

    def __str__(self) -> str:
        return str(self.trigger)

    def __repr__(self) -> str:
        return repr(self.trigger)


class ClaimedJob(Job):
    """A job in the hands of a scheduler; `fire` is its occurrence."""

    __slots__ = ("fire", "fixed", "plain_func")

    fire: Fire
    fixed: list[datetime] | None  # run times that are decided already
    func: Any
    plain_func: Any  # what `func` was before it told the fire

    def _get_run_times(self, now: datetime) -> list[datetime]:
        fire: Fire = self.fire
        job: Any = self  # a slot of the base class
        if self.fixed is not None:  # an occurrence that was handed out before: its run times are decided
            run_times, following = self.fixed, fire.next_run_time
        else:
            try:
                run_times, following = missed_runs(self, now)
            except Exception as error:  # the scheduler's loop would end; the store is told when the pass does
                fire.trigger_error = error
                return []
        if run_times:
            job.trigger = Answered(job.trigger, following)
        return fire.run_at(run_times)

    def __getstate__(self) -> dict[str, Any]:
        running, self.func = self.func, self.plain_func
        try:
            state: dict[str, Any] = super().__getstate__()
        finally:
            self.func = running
        fire = self.fire
        if type(self.trigger) is Answered:
            state["trigger"] = self.trigger.trigger
        state["fire"] = (fire.job_id, fire.scheduled, fire.token, fire.redelivered, fire.run_times)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process of a pool: the fire as far as the job's code may see it."""
        super().__setstate__(state)
        job_id, scheduled, token, redelivered, run_times = state["fire"]
        self.fire = Fire(self, job_id, scheduled, token, redelivered)
        self.fire.run_at(run_times)
        self.fixed = None
        self.plain_func = self.func
        self.func = fired(self.fire, self.func, self.misfire_grace_time)


def claimed(job: Any, token: int, grace_s: int | None) -> ClaimedJob:
    """A copy of `job` to hand to a scheduler, with a fire of its own.

    Args:
        job: a plain job with a next run time.
        token: fencing token.
        grace_s: the grace that its executor is to apply.
    """
    copy = ClaimedJob.__new__(ClaimedJob)
    for name in _STATE:
        setattr(copy, name, getattr(job, name))
    copy.misfire_grace_time = grace_s
    return dress(copy, token)


def dress(job: ClaimedJob, token: int, *, redelivered: bool = False, fixed: list[datetime] | None = None) -> ClaimedJob:
    """Give a new `ClaimedJob` its fire."""
    job.fire = Fire(job, job.id, job.next_run_time, token, redelivered)
    job.fixed = fixed
    job.plain_func = job.func
    job.func = fired(job.fire, job.func, job.misfire_grace_time)
    return job


def fired(fire: Fire, func: Callable[..., Any], grace_s: int | None) -> Callable[..., Any]:
    """`func`, run with `current_fire()` set to the run time whose turn it is."""
    turn = 0

    def begin() -> Any:
        nonlocal turn
        times = fire.run_times or [fire.scheduled]
        run_time = times[min(turn, len(times) - 1)]
        if grace_s is not None:  # the executor passes over the run times that it finds too late, without a word
            oldest = datetime.now(UTC) - timedelta(seconds=grace_s)
            while run_time < oldest and turn < len(times) - 1:
                turn += 1
                run_time = times[turn]
        turn += 1
        fire.note_start()
        return enter(fire.job_id, run_time, fire.token, fire.redelivered)

    if iscoroutinefunction(func):

        async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
            mark = begin()
            try:
                return await func(*args, **kwargs)
            finally:
                leave(mark)

        return run_coroutine

    def run(*args: Any, **kwargs: Any) -> Any:
        mark = begin()
        try:
            return func(*args, **kwargs)
        finally:
            leave(mark)

    return run
