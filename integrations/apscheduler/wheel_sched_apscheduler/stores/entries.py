"""The values that describe jobs without loading them: the same from a jobstore in memory and on a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from wheel_sched.errors import Rejected

JobState = Literal["scheduled", "paused", "in_flight", "quarantined"]
JOB_STATES: tuple[JobState, ...] = ("scheduled", "paused", "in_flight", "quarantined")


def check_state(state: str) -> None:
    """Refuse a text that is no state of a job.

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
        state: what becomes of it.
        func: reference of its function.
        name: for people.
        trigger: as text.
        next_run_time: None = paused.
        executor: alias of its executor.
        reason: why it is quarantined.
        tags: names by which it can be found.
        metadata: as given when it was added.
        args, kwargs: as stored; values that JSON lacks are in their tagged form.
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
    """One page of a listing. Pass `cursor` on for the next page; None = this is the last."""

    jobs: list[JobEntry]
    cursor: str | None = None
