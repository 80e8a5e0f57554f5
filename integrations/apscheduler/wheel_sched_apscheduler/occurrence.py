"""An occurrence: one claimed run of a job, on its way from the store through an executor to its end.

    claimed ──► planned ──► finished ──► settled    planned: the scheduler has set the job's next run time, or none
                   └──────► put back                put back: it did not run here, and becomes due again

Several missed run times of one job that run together are one occurrence. Its id, `job:run_time_ms`, stays the same when
it is handed out again, unless `coalesce` then merges it with later run times. `token` grows each time the same job is
handed out. So an outside system can refuse a smaller token than it has seen (Kleppmann's fencing token).

A stock scheduler gets a `ClaimedJob`, a subclass of `Job` that also has the occurrence: a `Job` has slots, so it cannot
have further attributes. Jobs that are stored, listed or looked up have no occurrence. A `ClaimedJob`
- notes the run times that the scheduler takes, so that an event about the end of a run leads to its occurrence;
- if the job is coalesced, gives only the last missed run time, see `missed_runs`;
- compares the lateness of its run times with the grace once, at the claim, unless `misfire` is "stock";
- asks the trigger once a pass, and repeats the answer when the scheduler asks again. If the trigger raises, the
  occurrence keeps the error and does not run, because the error would end a stock scheduler's loop;
- runs the function with `current_occurrence()` set, in a pool of threads, an event loop or a pool of processes.

Threads: one thread claims and plans. Other threads only note that a run begins or ends, or that its job was removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from inspect import iscoroutinefunction
from typing import Any

from apscheduler.job import Job

from wheel_sched_apscheduler.run_times import in_utc, missed_runs, to_ms

UNSEEN_AT_MOST = 3  # if the executor does not know a run at this many heartbeats in a row, the run is lost


class Finish(StrEnum):
    """How an occurrence ended."""

    EXECUTED = "executed"
    ERROR = "error"
    MISSED = "missed"
    REFUSED = "refused"  # the executor has `max_instances` running


class Occurrence:
    """One claimed run of a job.

    Args:
        job: the job to run. A `ClaimedJob`, for a stock scheduler, belongs to one occurrence only.
        job_id: the id of the job.
        scheduled: the next run time of the job when it was claimed.
        token: fencing token; greater than all earlier tokens of this job.
        redelivered: see `CurrentOccurrence`.
        claimed_ms: when it was claimed, in ms since 1970. Defaults to 0: the present time.
    """

    __slots__ = (
        "claimed_ms",
        "error",
        "finish",
        "finished_ms",
        "handle",
        "job",
        "job_id",
        "left",
        "next_run_time",
        "planned",
        "reached",
        "redelivered",
        "run_times",
        "scheduled",
        "started_ms",
        "submitted",
        "token",
        "trigger_error",
        "unseen",
    )

    def __init__(
        self, job: Any, job_id: str, scheduled: datetime, token: int, redelivered: bool = False, claimed_ms: int = 0
    ) -> None:
        self.job = job
        self.job_id = job_id
        self.scheduled = scheduled
        self.token = token
        self.redelivered = redelivered
        self.reached: datetime | None = None  # the store's time at the claim: no later run time is due
        self.run_times: list[datetime] = []
        self.left = 0  # number of run times that have not ended
        self.planned = False
        self.next_run_time: datetime | None = None
        self.submitted = False
        self.unseen = 0  # at how many heartbeats in a row the executor did not know the occurrence
        self.finish: Finish | None = None
        self.error = ""
        self.trigger_error: Exception | None = None  # what the trigger raised when it was asked for run times
        self.claimed_ms = claimed_ms or time.time_ns() // 1_000_000
        self.started_ms = self.finished_ms = 0
        self.handle: Any = None  # where the occurrence is in the store; only the jobstore uses this

    @property
    def id(self) -> str:
        """`job:run_time_ms`. For when it stays the same, see the top of this module."""
        return f"{self.job_id}:{to_ms((self.run_times or [self.scheduled])[0])}"

    @property
    def alive(self) -> bool:
        """Whether the occurrence was submitted and its executor still knows it.

        The executor may fail to know it at some heartbeats in a row, fewer than `UNSEEN_AT_MOST`: an executor forgets a
        run shortly before it sends the event of the end.
        """
        return self.submitted and self.unseen < UNSEEN_AT_MOST

    def due_at(self, now: datetime) -> datetime:
        """The moment up to which run times are due: the earlier of `now` and the store's time at the claim."""
        return now if self.reached is None else min(now, self.reached)

    def run_at(self, run_times: list[datetime]) -> list[datetime]:
        """Set the run times that the executor gets, and return them."""
        self.run_times = run_times
        self.left = len(run_times)
        return run_times

    def plan(self, next_run_time: datetime | None) -> None:
        """Set the next run time of the job; None = the job has no next run."""
        self.next_run_time = next_run_time
        self.planned = True

    def mark_started(self) -> None:
        """Note the time at which the job's code begins. With several run times, only the first call counts."""
        if not self.started_ms:
            self.started_ms = time.time_ns() // 1_000_000

    def mark_ended(self, finish: Finish, error: str = "") -> None:
        """Note how the occurrence ended. Call this when the last of its run times has ended."""
        self.finish, self.error = finish, error
        self.finished_ms = time.time_ns() // 1_000_000

    def __repr__(self) -> str:
        state = self.finish or ("planned" if self.planned else "claimed")
        return f"<Occurrence {self.id} token={self.token} {state}>"


@dataclass(frozen=True, slots=True)
class CurrentOccurrence:
    """What a running job can read about its occurrence.

    `id` is `job:run_time_ms`. Use it as an idempotency key.

    Args:
        job_id: the id of the job.
        run_time: the time for which the run was scheduled.
        token: the fencing token. Pass it to a system that refuses tokens smaller than one that it has seen.
        redelivered: whether a process that had claimed this occurrence was lost; also True for some that were put back.
    """

    job_id: str
    run_time: datetime
    token: int
    redelivered: bool

    @property
    def id(self) -> str:
        """The id of the occurrence, `job:run_time_ms`."""
        return f"{self.job_id}:{to_ms(self.run_time)}"

    def __repr__(self) -> str:
        return f"<CurrentOccurrence {self.id} token={self.token}{' redelivered' if self.redelivered else ''}>"


# the arguments of a CurrentOccurrence; few jobs ask for one, so only `current_occurrence` makes it
_current: ContextVar[tuple[str, datetime, int, bool] | None] = ContextVar("wheel_sched_occurrence", default=None)


def current_occurrence() -> CurrentOccurrence | None:
    """The occurrence that runs in this thread or task; None outside of a job from one of our jobstores."""
    running = _current.get()
    return None if running is None else CurrentOccurrence(*running)


def set_current(job_id: str, run_time: datetime, token: int, redelivered: bool) -> Any:
    """Make an occurrence the current one. Give the returned value to `reset_current`."""
    return _current.set((job_id, run_time, token, redelivered))


def reset_current(mark: Any) -> None:
    """Undo the call of `set_current` that returned `mark`."""
    _current.reset(mark)


_STATE = (
    *("id", "func", "func_ref", "args", "kwargs", "trigger", "name", "executor", "next_run_time"),
    *("coalesce", "max_instances", "misfire_grace_time", "_scheduler", "_jobstore_alias"),
)


class Answered:
    """Repeats the run time that `trigger` has given. Asked again, `trigger` might give another one, or raise."""

    __slots__ = ("_following", "trigger")

    def __init__(self, trigger: Any, following: datetime | None) -> None:
        self.trigger = trigger
        self._following = following

    def get_next_fire_time(self, _: datetime | None, __: datetime) -> datetime | None:
        """The run time that `trigger` has given before."""
        return self._following

    def __str__(self) -> str:
        return str(self.trigger)

    def __repr__(self) -> str:
        return repr(self.trigger)


class ClaimedJob(Job):
    """A job that has an occurrence, so that a stock scheduler can run it.

    An executor of APScheduler compares the lateness of a run time with the grace when the run begins. So the grace of a
    claimed job grows with time: a run time that was in time at the claim stays in time.
    """

    __slots__ = ("claimed_at", "fixed", "grace_s", "occurrence", "plain_func")

    claimed_at: datetime | None  # lateness is measured up to this moment; None: up to the present
    grace_s: int | None

    occurrence: Occurrence
    fixed: list[datetime] | None  # run times that are already decided
    func: Any
    plain_func: Any  # `func`, without `current_occurrence()` set

    @property
    def misfire_grace_time(self) -> float | None:
        """How late a run may begin, in seconds. The executor drops a run that is later. None: it drops none."""
        oldest = None if self.claimed_at is None else self.oldest_in_grace()
        return self.grace_s if oldest is None else (datetime.now(UTC) - oldest).total_seconds()

    @misfire_grace_time.setter
    def misfire_grace_time(self, grace_s: int | None) -> None:
        self.grace_s, self.claimed_at = grace_s, None

    def oldest_in_grace(self) -> datetime | None:
        """The moment before which executors drop run times as too late. None: executors drop no run time."""
        if self.grace_s is None:
            return None
        oldest = (self.claimed_at or datetime.now(UTC)) - timedelta(seconds=self.grace_s)
        if self.claimed_at is None:
            return oldest
        # the first run time in grace, or the time of the claim: the answer is the same whenever the executor asks
        times = map(in_utc, self.occurrence.run_times or [self.occurrence.scheduled])
        return next((moment for moment in times if moment >= oldest), self.claimed_at)

    def _get_run_times(self, now: datetime) -> list[datetime]:
        occurrence: Occurrence = self.occurrence
        job: Any = self  # untyped, because `trigger` is a slot of the base class
        if self.fixed is not None:  # the occurrence was handed out before: its run times are decided
            run_times, following = self.fixed, occurrence.next_run_time
        else:
            try:
                run_times, following = missed_runs(self, occurrence.due_at(now))
            except Exception as error:  # the end of the pass reports this error, which would end the scheduler's loop
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
        state["misfire_grace_time"] = self.grace_s
        state["occurrence"] = (
            self.claimed_at,
            occurrence.job_id,
            occurrence.scheduled,
            occurrence.token,
            occurrence.redelivered,
            occurrence.run_times,
        )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the job in a process of a pool, with the part of its occurrence that the job's code can read."""
        super().__setstate__(state)
        claimed_at, job_id, scheduled, token, redelivered, run_times = state["occurrence"]
        self.occurrence = Occurrence(self, job_id, scheduled, token, redelivered)
        self.occurrence.run_at(run_times)
        self.fixed, self.claimed_at = None, claimed_at
        self.plain_func = self.func
        self.func = with_current_occurrence(self.occurrence, self.func, self.oldest_in_grace)

    def hand_out(
        self,
        token: int,
        *,
        redelivered: bool = False,
        fixed: list[datetime] | None = None,
        claimed_at: datetime | None = None,
    ) -> Occurrence:
        """Give this job its occurrence, and return the occurrence.

        Args:
            token: fencing token.
            redelivered: whether the occurrence was handed out before. Defaults to False.
            fixed: the occurrence's run times, if they are already decided. Defaults to None.
            claimed_at: the moment up to which the lateness of the run times is measured. Defaults to None: up to the
                moment at which the executor begins each run.
        """
        self.occurrence = Occurrence(self, self.id, self.next_run_time, token, redelivered)
        self.fixed, self.claimed_at = fixed, claimed_at
        self.plain_func = self.func
        self.func = with_current_occurrence(self.occurrence, self.func, self.oldest_in_grace)
        return self.occurrence


def claimed_copy(
    job: Any, token: int, grace_s: int | None, *, redelivered: bool = False, claimed_at: datetime | None = None
) -> ClaimedJob:
    """Copy a plain job into a `ClaimedJob` with a new occurrence.

    Args:
        job: a job that has a next run time.
        token: fencing token.
        grace_s: the grace that the executor of the job applies, in seconds.
        redelivered: whether the occurrence was handed out before. Defaults to False.
        claimed_at: the moment up to which the lateness of the run times is measured. Defaults to None: up to the
            moment at which the executor begins each run.
    """
    copy = ClaimedJob.__new__(ClaimedJob)
    for name in _STATE:
        setattr(copy, name, getattr(job, name))
    copy.misfire_grace_time = grace_s
    copy.hand_out(token, redelivered=redelivered, claimed_at=claimed_at)
    return copy


def with_current_occurrence(
    occurrence: Occurrence, func: Callable[..., Any], oldest_in_grace: Callable[[], datetime | None]
) -> Callable[..., Any]:
    """Return a function that calls `func` with `current_occurrence()` set to the present run time.

    Args:
        occurrence: the occurrence, which has the run times.
        func: the job's function.
        oldest_in_grace: returns the moment before which the executor drops run times; None: it drops none.
    """
    turn = 0

    def begin() -> Any:
        nonlocal turn
        times = occurrence.run_times or [occurrence.scheduled]
        run_time = times[min(turn, len(times) - 1)]
        oldest = oldest_in_grace()
        if oldest is not None:  # the executor skips run times that are too late, and does not say so
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
