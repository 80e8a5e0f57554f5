"""Jobs and runs as plain values, from a jobstore in memory or on a server. Making them imports no job's function."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from wheel_sched.errors import Rejected
from wheel_sched_apscheduler.occurrence import Occurrence
from wheel_sched_apscheduler.run_times import to_ms

JobState = Literal["scheduled", "paused", "in_flight", "quarantined"]
JOB_STATES: tuple[JobState, ...] = ("scheduled", "paused", "in_flight", "quarantined")


def check_state(state: str) -> None:
    """Check that a text is a state of a job.

    Raises:
        Rejected: the text is not one of `JOB_STATES`.
    """
    if state not in JOB_STATES:
        raise Rejected(f"expected state to be one of {', '.join(JOB_STATES)}, got: {state!r}; nothing was changed")


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One job as the store has it.

    Args:
        id: the id of the job.
        state: one of `JOB_STATES`.
        func: reference of the job's function.
        name: the name of the job, for people.
        trigger: the trigger of the job, as text.
        next_run_time: None = paused, or the job cannot be read.
        executor: alias of the job's executor.
        reason: why the job is quarantined or cannot be read, or why a process could not run it and gave it back.
            Defaults to "".
        tags: names by which the job can be found.
        metadata, args, kwargs: as stored. From a server, a value of a type that JSON lacks has its tagged form, see
            `codec.values`.
    """

    id: str
    state: JobState
    func: str
    name: str
    trigger: str
    next_run_time: datetime | None
    executor: str = "default"
    reason: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a listing. Pass `cursor` to the next call to get the next page; None = this page is the last."""

    jobs: list[JobEntry]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class InFlightRun:
    """An occurrence that a process has claimed and not settled.

    Args:
        job_id: the id of the job.
        occurrence_id: `job:run_time_ms`; None when it is not known, because the process has not announced the run yet.
        lease_until_ms: end of the run's lease, which the process extends; None in a memory jobstore.
        owner: `host:pid` of the process; None when it has not announced the run yet. A process usually announces a run
            half a second to two seconds after its claim, and at most 500 runs at a time.
        since_ms: when the occurrence was claimed; None when the process has not announced the run yet.
        token: fencing token; 0 = unknown.
    """

    job_id: str
    occurrence_id: str | None
    lease_until_ms: int | None
    owner: str | None
    since_ms: int | None
    token: int = 0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """How one occurrence ended. Times are in ms since 1970.

    `started_ms` is 0 when the occurrence did not run, and when its process does not know when it began: under our
    schedulers, an executor that is no pool of threads and no `AsyncIOExecutor`; under others, a pool of processes.
    """

    job_id: str
    occurrence_id: str
    run_time_ms: int
    claimed_ms: int
    started_ms: int
    finished_ms: int
    outcome: str
    error: str
    token: int
    owner: str

    @property
    def lateness_ms(self) -> int:
        """How long after its run time the occurrence started, in ms. If `started_ms` is 0: until its claim."""
        return self.started_ms - self.run_time_ms if self.started_ms else self.claimed_ms - self.run_time_ms


def owner_name() -> str:
    """This process as `host:pid`, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


def record_of(occurrence: Occurrence, owner: str) -> RunRecord:
    """The record of an occurrence that has ended."""
    run_time = (occurrence.run_times or [occurrence.scheduled])[0]
    return RunRecord(
        occurrence.job_id,
        occurrence.id,
        to_ms(run_time),
        occurrence.claimed_ms,
        occurrence.started_ms,
        occurrence.finished_ms,
        str(occurrence.finish),
        occurrence.error[:200],
        occurrence.token,
        owner,
    )


def newest(records: Iterable[RunRecord], limit: int) -> list[RunRecord]:
    """The `limit` latest records, newest first."""
    return sorted(records, key=lambda record: record.finished_ms, reverse=True)[:limit]
