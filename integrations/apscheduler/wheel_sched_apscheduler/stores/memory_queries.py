"""MemoryJobQueries: the jobs of one process, and those methods of `queries.JobQueries` that one process needs.

It has no quarantine, because no job is read from bytes. It has no methods to pause jobs or to run them now. Use
the scheduler of the same process: `pause_job`, or `modify_job` with a new `next_run_time`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from apscheduler.jobstores.base import ConflictingIdError, JobLookupError

from wheel_sched.errors import Rejected
from wheel_sched.wheel import TimerTaskEntry
from wheel_sched_apscheduler.entries import (
    InFlightRun,
    JobEntry,
    JobPage,
    JobState,
    RunRecord,
    check_state,
    newest,
    owner_name,
    record_of,
)
from wheel_sched_apscheduler.occurrence import Occurrence
from wheel_sched_apscheduler.run_times import to_us
from wheel_sched_apscheduler.stores.scheduler_pass import SchedulerPassStore

NEVER_US = 1 << 62  # the due time of a paused job


class Slot:
    """One job and where it waits."""

    __slots__ = ("due_us", "job", "late", "occurrence", "timer")

    def __init__(self, job: Any) -> None:
        self.job = job
        self.due_us = NEVER_US
        self.timer: TimerTaskEntry[Slot] | None = None
        self.late = False  # whether the job is in the misfire queue
        self.occurrence: Occurrence | None = None

    @property
    def state(self) -> JobState:
        """The state of the job, as listings show it."""
        if self.occurrence is not None:
            return "in_flight"
        return "paused" if self.job.next_run_time is None else "scheduled"


slot_order = attrgetter("due_us", "job.id")


class MemoryJobQueries(SchedulerPassStore):
    """The part of the jobstore in memory that needs no scheduler.

    Args:
        history: how many run records are kept.
    """

    def __init__(self, history: int) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._slots: dict[str, Slot] = {}
        self._in_flight: dict[int, Occurrence] = {}  # by token
        self._past: deque[Occurrence] = deque(maxlen=history)
        self._tags: dict[str, tuple[str, ...]] = {}
        self._metadata: dict[str, Mapping[str, Any]] = {}

    def _ordered(self) -> list[Slot]:
        """All jobs by next run time, then id; paused ones last."""
        with self._lock:
            return sorted(self._slots.values(), key=slot_order)

    def entries(self, state: JobState | None = None) -> Iterator[JobEntry]:
        """Every job in a state, or in all states.

        Raises:
            Rejected: there is no such state.
        """
        if state is not None:
            check_state(state)
        for slot in self._ordered():
            if state in (None, slot.state):
                yield self._entry(slot)

    def _entry(self, slot: Slot) -> JobEntry:
        job = slot.job
        return JobEntry(
            job.id,
            slot.state,
            str(job.func_ref or job.func),
            job.name,
            str(job.trigger),
            job.next_run_time,
            job.executor,
            tags=self._tags.get(job.id, ()),
            metadata=self._metadata.get(job.id, {}),
            args=job.args,
            kwargs=job.kwargs,
        )

    def count(self, state: JobState | None = None) -> int:
        """How many jobs there are, in one state or in all.

        Raises:
            Rejected: there is no such state.
        """
        if state is None:
            return len(self._slots)
        check_state(state)
        with self._lock:
            return sum(slot.state == state for slot in self._slots.values())

    def iter_jobs(
        self,
        cursor: str | None = None,
        *,
        state: JobState = "scheduled",
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> JobPage:
        """One page of the jobs in a state, by next run time. `since` and `until` bound the next run time.

        Raises:
            Rejected: there is no such state, or the cursor is no number.
        """
        try:
            start = int(cursor or 0)
        except ValueError as error:
            raise Rejected(f"expected a cursor from an earlier page, got: {cursor!r}; nothing was changed") from error
        chosen = [entry for entry in self.entries(state) if _between(entry.next_run_time, since, until)]
        end = start + limit
        return JobPage(chosen[start:end], str(end) if end < len(chosen) else None)

    def due_between(self, since: datetime, until: datetime) -> Iterator[JobEntry]:
        """Scheduled jobs whose next run time lies between two moments, both included."""
        yield from self.iter_jobs(since=since, until=until, limit=1 << 60).jobs

    def get_entry(self, job_id: str) -> JobEntry | None:
        """The job with this id; None = there is none."""
        slot = self._slots.get(job_id)
        return None if slot is None else self._entry(slot)

    def add_jobs(
        self, jobs: Sequence[Any], *, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()
    ) -> list[str]:
        """Add jobs. Returns the ids that already exist; those jobs are not changed."""
        left_alone = []
        for job in jobs:
            try:
                self.add_job(job)
            except ConflictingIdError:
                left_alone.append(job.id)
                continue
            if tags:
                self._tags[job.id] = tuple(tags)
            if metadata:
                self._metadata[job.id] = dict(metadata)
        return left_alone

    def remove_jobs(self, job_ids: Sequence[str]) -> int:
        """Remove jobs. Returns how many of them existed."""
        removed = 0
        for job_id in job_ids:
            try:
                self._remove(job_id)
                removed += 1
            except JobLookupError:
                continue
        return removed

    def find(self, tag: str) -> list[str]:
        """Ids of the jobs with a tag, sorted."""
        return sorted(job_id for job_id, tags in self._tags.items() if tag in tags)

    def set_tags(self, job_id: str, tags: Sequence[str]) -> None:
        """Replace a job's tags.

        Raises:
            JobLookupError: there is no such job.
        """
        self._must_be_there(job_id)
        self._tags[job_id] = tuple(tags)

    def set_metadata(self, job_id: str, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of a job.

        Raises:
            JobLookupError: there is no such job.
        """
        self._must_be_there(job_id)
        self._metadata[job_id] = dict(metadata)

    def _must_be_there(self, job_id: str) -> None:
        if job_id not in self._slots:
            raise JobLookupError(job_id)

    def in_flight(self) -> list[InFlightRun]:
        """The occurrences that are claimed and have not ended."""
        owner = owner_name()
        return [
            InFlightRun(occurrence.job_id, occurrence.id, None, owner, occurrence.claimed_ms, occurrence.token)
            for occurrence in list(self._in_flight.values())
        ]

    def history(self, *, job_id: str | None = None, limit: int = 100) -> list[RunRecord]:
        """How the last occurrences ended, newest first."""
        owner = owner_name()
        return newest(
            (record_of(occurrence, owner) for occurrence in list(self._past) if job_id in (None, occurrence.job_id)),
            limit,
        )


def _between(moment: datetime | None, since: datetime | None, until: datetime | None) -> bool:
    """Whether a next run time lies between two moments, both included. A limit of None is no limit.

    A paused job (`moment` is None) matches only if both limits are None.
    """
    if moment is None:
        return since is None and until is None
    at_us = to_us(moment)
    return (since is None or at_us >= to_us(since)) and (until is None or at_us <= to_us(until))
