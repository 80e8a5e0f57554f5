"""A fire: one claimed occurrence of a job, on its way from the store through an executor to its end.

    claimed ──► planned ──► finished ──► settled          planned: the scheduler has said what comes next
                   └──────► released                      (a next run time, or none: it was the last one)

Several missed run times of one job that are handed over together are one fire. Its id, `job:run_time_ms`, is the same
however often the occurrence is handed out; `token` grows with each hand-out of the same job, so that an outside system
which remembers the greatest token it has seen can refuse a holder that was believed dead (Kleppmann's fencing token).

Threads: one claimer makes and plans fires; the flags that other threads set are single assignments.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import datetime
from enum import StrEnum
from typing import Any

from wheel_sched_apscheduler.instants import to_ms

UNSEEN_AT_MOST = 3  # heartbeats


class Finish(StrEnum):
    """How a fire ended."""

    EXECUTED = "executed"
    ERROR = "error"
    MISSED = "missed"
    REFUSED = "refused"  # the executor has `max_instances` running


class Fire:
    """One claimed occurrence.

    Args:
        job: what to run; a job of its own that no one else has.
        job_id: of the job.
        scheduled: its next run time when it was claimed.
        token: fencing token; greater than that of every earlier hand-out of this job.
        redelivered: whether the occurrence was handed out before and its holder was lost.
        claimed_ms: when it was claimed, in ms since 1970. Defaults to 0: now.
    """

    __slots__ = (
        "claimed_ms",
        "error",
        "finish",
        "finished_ms",
        "handed_over",
        "job",
        "job_id",
        "left",
        "next_run_time",
        "planned",
        "redelivered",
        "run_times",
        "scheduled",
        "started_ms",
        "ticket",
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
        self.run_times: list[datetime] = []
        self.left = 0  # run times that have not ended
        self.planned = False
        self.next_run_time: datetime | None = None
        self.handed_over = False
        self.unseen = 0  # heartbeats at which its executor did not know it
        self.finish: Finish | None = None
        self.error = ""
        self.trigger_error: Exception | None = None  # its trigger could not say when it runs
        self.claimed_ms = claimed_ms or time.time_ns() // 1_000_000
        self.started_ms = self.finished_ms = 0
        self.ticket: Any = None  # the store's own

    @property
    def id(self) -> str:
        """`job:run_time_ms`, the same at every hand-out of this occurrence."""
        return f"{self.job_id}:{to_ms((self.run_times or [self.scheduled])[0])}"

    @property
    def alive(self) -> bool:
        """Whether it was handed over and is not known to be lost; between a run and its event it is unseen once."""
        return self.handed_over and self.unseen < UNSEEN_AT_MOST

    def run_at(self, run_times: list[datetime]) -> list[datetime]:
        """Remember the run times that are handed to the executor."""
        self.run_times = run_times
        self.left = len(run_times)
        return run_times

    def plan(self, next_run_time: datetime | None) -> None:
        """What comes after this fire: the job's next run time, None = nothing."""
        self.next_run_time = next_run_time
        self.planned = True

    def note_start(self) -> None:
        """The job's code begins; the first of several run times counts."""
        if not self.started_ms:
            self.started_ms = time.time_ns() // 1_000_000

    def note_end(self, finish: Finish, error: str = "") -> None:
        """The last of its run times has ended."""
        self.finish, self.error = finish, error
        self.finished_ms = time.time_ns() // 1_000_000

    def __repr__(self) -> str:
        state = self.finish or ("planned" if self.planned else "claimed")
        return f"<Fire {self.id} token={self.token} {state}>"


def bare_fire(
    job: Any, token: int, *, redelivered: bool = False, fixed: list[datetime] | None = None, claimed_ms: int = 0
) -> Fire:
    """The fire of a job that stays as it is, for a driver that sets the current fire itself.

    Args:
        job: with a next run time.
        token: fencing token.
        redelivered: whether the occurrence was handed out before.
        fixed: the run times when they are decided already; they then stand in `run_times`. Defaults to None.
        claimed_ms: see `Fire`. Defaults to 0.
    """
    fire = Fire(job, job.id, job.next_run_time, token, redelivered, claimed_ms)
    if fixed:
        fire.run_at(fixed)
    return fire


class CurrentFire:
    """What a running job may know of its own occurrence.

    `id` is `job:run_time_ms`; use it to make an effect idempotent.

    Args:
        job_id: of the job.
        run_time: when it was meant to run.
        token: fencing token; hand it to systems that refuse smaller ones than they have seen.
        redelivered: whether an earlier holder was lost, perhaps half-way.
    """

    __slots__ = ("job_id", "redelivered", "run_time", "token")

    def __init__(self, job_id: str, run_time: datetime, token: int, redelivered: bool) -> None:
        self.job_id = job_id
        self.run_time = run_time
        self.token = token
        self.redelivered = redelivered

    @property
    def id(self) -> str:
        """`job:run_time_ms`."""
        return f"{self.job_id}:{to_ms(self.run_time)}"

    def __repr__(self) -> str:
        return f"<CurrentFire {self.id} token={self.token}{' redelivered' if self.redelivered else ''}>"


# the arguments of a CurrentFire: few jobs ask for theirs, so it is made when one does
_current: ContextVar[tuple[str, datetime, int, bool] | None] = ContextVar("wheel_sched_fire", default=None)


def current_fire() -> CurrentFire | None:
    """The occurrence that is running here; None outside of a job of our stores."""
    running = _current.get()
    return None if running is None else CurrentFire(*running)


def enter(job_id: str, run_time: datetime, token: int, redelivered: bool) -> Any:
    """Make an occurrence the current one; give the answer to `leave`."""
    return _current.set((job_id, run_time, token, redelivered))


def leave(mark: Any) -> None:
    """End what `enter` began."""
    _current.reset(mark)
