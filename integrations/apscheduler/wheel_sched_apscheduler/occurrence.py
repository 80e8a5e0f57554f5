"""An occurrence: one claimed run of a job, on its way from the store through an executor to its end.

    claimed ──► planned ──► finished ──► settled          planned: the scheduler has said what follows
                   └──────► released                      (the next run time of the job, or none)

Several missed run times of one job that run together are one occurrence. Its id, `job:run_time_ms`, stays the same
however often it is handed out. `token` grows with each hand-out of the same job. So an outside system that remembers
the greatest token it has seen can refuse a holder that was believed dead (Kleppmann's fencing token).

Threads: one thread claims and plans; the flags that other threads set are single assignments.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import datetime
from enum import StrEnum
from typing import Any

from wheel_sched_apscheduler.run_times import to_ms

UNSEEN_AT_MOST = 3  # heartbeats


class Finish(StrEnum):
    """How an occurrence ended."""

    EXECUTED = "executed"
    ERROR = "error"
    MISSED = "missed"
    REFUSED = "refused"  # the executor has `max_instances` running


class Occurrence:
    """One claimed run of a job.

    Args:
        job: what to run; nobody else holds this object.
        job_id: of the job.
        scheduled: its next run time when it was claimed.
        token: fencing token; greater than that of every earlier hand-out of this job.
        redelivered: whether it was handed out before and its holder was lost.
        claimed_ms: when it was claimed, in ms since 1970. Defaults to 0: now.
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
        self.run_times: list[datetime] = []
        self.left = 0  # how many run times have not ended
        self.planned = False
        self.next_run_time: datetime | None = None
        self.submitted = False
        self.unseen = 0  # heartbeats in a row at which its executor did not know it
        self.finish: Finish | None = None
        self.error = ""
        self.trigger_error: Exception | None = None  # of its trigger, when asked for run times
        self.claimed_ms = claimed_ms or time.time_ns() // 1_000_000
        self.started_ms = self.finished_ms = 0
        self.handle: Any = None  # where it lies in its store; the store's own

    @property
    def id(self) -> str:
        """`job:run_time_ms`, the same at every hand-out."""
        return f"{self.job_id}:{to_ms((self.run_times or [self.scheduled])[0])}"

    @property
    def alive(self) -> bool:
        """Whether it was submitted and is not known to be lost. Between a run and its event it is unseen once."""
        return self.submitted and self.unseen < UNSEEN_AT_MOST

    def run_at(self, run_times: list[datetime]) -> list[datetime]:
        """Note the run times that the executor gets; they are returned."""
        self.run_times = run_times
        self.left = len(run_times)
        return run_times

    def plan(self, next_run_time: datetime | None) -> None:
        """Note what follows: the next run time of the job, None = there is none."""
        self.next_run_time = next_run_time
        self.planned = True

    def mark_started(self) -> None:
        """The job's code begins. Of several run times the first counts."""
        if not self.started_ms:
            self.started_ms = time.time_ns() // 1_000_000

    def mark_ended(self, finish: Finish, error: str = "") -> None:
        """The last of its run times has ended."""
        self.finish, self.error = finish, error
        self.finished_ms = time.time_ns() // 1_000_000

    def __repr__(self) -> str:
        state = self.finish or ("planned" if self.planned else "claimed")
        return f"<Occurrence {self.id} token={self.token} {state}>"


def plain_occurrence(
    job: Any, token: int, *, redelivered: bool = False, fixed: list[datetime] | None = None, claimed_ms: int = 0
) -> Occurrence:
    """The occurrence of a plain job, for a driver that sets the current occurrence itself.

    Args:
        job: with a next run time.
        token: fencing token.
        redelivered: whether the occurrence was handed out before.
        fixed: its run times, when they are already decided. Defaults to None.
        claimed_ms: see `Occurrence`. Defaults to 0.
    """
    occurrence = Occurrence(job, job.id, job.next_run_time, token, redelivered, claimed_ms)
    if fixed:
        occurrence.run_at(fixed)
    return occurrence


class CurrentOccurrence:
    """What a running job may know of its occurrence.

    `id` is `job:run_time_ms`. Use it as an idempotency key.

    Args:
        job_id: of the job.
        run_time: when the job was to run.
        token: fencing token; give it to systems that refuse a smaller one than they have seen.
        redelivered: whether an earlier holder was lost, perhaps in the middle of the run.
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
        return f"<CurrentOccurrence {self.id} token={self.token}{' redelivered' if self.redelivered else ''}>"


# the arguments of a CurrentOccurrence; few jobs ask for it, so it is made when one does
_current: ContextVar[tuple[str, datetime, int, bool] | None] = ContextVar("wheel_sched_occurrence", default=None)


def current_occurrence() -> CurrentOccurrence | None:
    """The occurrence that runs here; None outside of a job from one of our jobstores."""
    running = _current.get()
    return None if running is None else CurrentOccurrence(*running)


def set_current(job_id: str, run_time: datetime, token: int, redelivered: bool) -> Any:
    """Make an occurrence the current one. Give the returned value to `reset_current`."""
    return _current.set((job_id, run_time, token, redelivered))


def reset_current(mark: Any) -> None:
    """Undo `set_current`."""
    _current.reset(mark)
