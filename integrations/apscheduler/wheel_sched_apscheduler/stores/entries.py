"""What a store tells about its jobs without loading any: plain values, the same from memory and from a server."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal

from wheel_sched.errors import Rejected
from wheel_sched_apscheduler.instants import to_ms
from wheel_sched_apscheduler.occurrence import Fire

JobState = Literal["scheduled", "paused", "in_flight", "quarantined"]
JOB_STATES: tuple[JobState, ...] = ("scheduled", "paused", "in_flight", "quarantined")


def check_state(state: str) -> None:
    """Refuse what is no state of a job.

    Raises:
        Rejected: it is none.
    """
    if state not in JOB_STATES:
        raise Rejected(f"expected state to be one of {', '.join(JOB_STATES)}, got: {state!r}; nothing was changed")


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One job as it lies in the store.

    Args:
        id: of the job.
        state: where it lies.
        func: reference of its function.
        name: for people.
        trigger: as text.
        next_run_time: None = paused.
        executor: alias of its executor.
        reason: why it is quarantined.
        tags: names it can be found by.
        metadata: what was stored beside it.
        args, kwargs: as stored; values that JSON lacks stand in their tagged form.
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
    """One page of a listing; give `cursor` back for the next one, None = that was the last."""

    jobs: list[JobEntry]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class InFlight:
    """An occurrence that was handed out and has not ended.

    Args:
        job_id: of the job.
        fire_id: `job:run_time_ms`, None when its holder has not said yet.
        lease_until_ms: when it is handed out again unless its holder extends the lease; None in a memory store.
        owner: `host:pid` of the holder; None when it has not said yet (a run is announced after half a second).
        since_ms: when it was claimed.
        token: fencing token, 0 when not told.
    """

    job_id: str
    fire_id: str | None
    lease_until_ms: int | None
    owner: str | None
    since_ms: int | None
    token: int = 0


@dataclass(frozen=True, slots=True)
class FireRecord:
    """How one fire went. Times in ms since 1970; `started_ms` is 0 for one that did not run."""

    job_id: str
    fire_id: str
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
        """From the run time to the start."""
        return self.started_ms - self.run_time_ms if self.started_ms else self.claimed_ms - self.run_time_ms


_row_of = attrgetter(*(each.name for each in fields(FireRecord)))


def owner_name() -> str:
    """This process, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


def record_of(fire: Fire, owner: str) -> FireRecord:
    """What history keeps of a fire that has ended."""
    run_time = (fire.run_times or [fire.scheduled])[0]
    return FireRecord(
        fire.job_id,
        fire.id,
        to_ms(run_time),
        fire.claimed_ms,
        fire.started_ms,
        fire.finished_ms,
        str(fire.finish),
        fire.error[:200],
        fire.token,
        owner,
    )


def newest(records: Iterable[FireRecord], limit: int) -> list[FireRecord]:
    """The `limit` that ended last, newest first."""
    return sorted(records, key=lambda record: record.finished_ms, reverse=True)[:limit]


def dump_records(records: Sequence[FireRecord]) -> bytes:
    """Records as one body."""
    return json.dumps([_row_of(record) for record in records], separators=(",", ":")).encode()


def load_records(body: bytes) -> list[FireRecord]:
    """Records of one body; [] of one that cannot be read."""
    try:
        return [FireRecord(*row) for row in json.loads(body)]
    except (ValueError, TypeError):
        return []
