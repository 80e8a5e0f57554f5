"""MemoryJobQueries: the calls of `queries`, as far as one process needs them.

There is no quarantine, for nothing is ever loaded. A scheduler itself pauses jobs and runs them now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from apscheduler.jobstores.base import ConflictingIdError, JobLookupError

from wheel_sched.errors import Rejected
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


class MemoryJobQueries:
    """The part of a memory jobstore that needs no scheduler."""

    _in_flight: dict[int, Occurrence]  # by token
    _past: deque[Occurrence]
    _tags: dict[str, tuple[str, ...]]
    _metadata: dict[str, Mapping[str, Any]]

    def _ordered(self) -> list[tuple[Any, JobState]]:
        """All jobs with their states, by next run time, then id; paused ones last."""
        raise NotImplementedError

    def _one(self, job_id: str) -> tuple[Any, JobState] | None:
        """One job with its state."""
        raise NotImplementedError

    def _states(self) -> Sequence[JobState]:
        """The state of each job, in no order."""
        raise NotImplementedError

    def add_job(self, job: Any) -> None:
        """Add one."""
        raise NotImplementedError

    def _remove(self, job_id: str) -> None:
        raise NotImplementedError

    def entries(self, state: JobState | None = None) -> Iterator[JobEntry]:
        """Every job in a state, or in all states.

        Raises:
            Rejected: there is no such state.
        """
        if state is not None:
            check_state(state)
        for job, found in self._ordered():
            if state in (None, found):
                yield self._entry(job, found)

    def _entry(self, job: Any, state: JobState) -> JobEntry:
        return JobEntry(
            job.id,
            state,
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
        states = self._states()
        if state is None:
            return len(states)
        check_state(state)
        return sum(found == state for found in states)

    def iter_jobs(
        self,
        cursor: str | None = None,
        *,
        state: JobState = "scheduled",
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> JobPage:
        """One page of a state in order of next run time; `since` and `until` narrow it to a span of those.

        Raises:
            Rejected: there is no such state, or the cursor is not from an earlier page.
        """
        try:
            start = int(cursor or 0)
        except ValueError as error:
            raise Rejected(f"expected a cursor from an earlier page, got: {cursor!r}; nothing was changed") from error
        chosen = [entry for entry in self.entries(state) if _between(entry.next_run_time, since, until)]
        end = start + limit
        return JobPage(chosen[start:end], str(end) if end < len(chosen) else None)

    def due_between(self, since: datetime, until: datetime) -> Iterator[JobEntry]:
        """Jobs whose next run time lies between two moments, both included."""
        yield from self.iter_jobs(since=since, until=until, limit=1 << 60).jobs

    def get_entry(self, job_id: str) -> JobEntry | None:
        """One job, None when there is none."""
        found = self._one(job_id)
        return None if found is None else self._entry(*found)

    def add_jobs(
        self, jobs: Sequence[Any], *, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()
    ) -> list[str]:
        """Add jobs. Jobs whose id exists are left alone; their ids are returned."""
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
        """Remove jobs; the number of those that existed."""
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
        if self._one(job_id) is None:
            raise JobLookupError(job_id)

    def in_flight(self) -> list[InFlightRun]:
        """Occurrences that were handed out and have not ended."""
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
    """Whether a next run time lies between two moments, both included. None lies only between no moments."""
    if moment is None:
        return since is None and until is None
    at_us = to_us(moment)
    return (since is None or at_us >= to_us(since)) and (until is None or at_us <= to_us(until))
