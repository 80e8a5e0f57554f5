"""JobQueries: the methods that list and change stored jobs without loading them.

This module never imports a job's function. So these calls work in a process without the jobs' code: an administrator's
shell, a web page, a producer. Listings are pages; scheduled jobs come in the order in which they are due.

Threads: any thread may call any method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from apscheduler.jobstores.base import JobLookupError

from wheel_sched.errors import NotDone
from wheel_sched.store import DelayStore, Found, Item, Outcome, State
from wheel_sched.store.core.change import Alteration
from wheel_sched.store.core.items import MAX_DUE_MS
from wheel_sched_apscheduler.codec import JobCodec, Unreadable, unsigned
from wheel_sched_apscheduler.entries import (
    JOB_STATES,
    InFlightRun,
    JobEntry,
    JobPage,
    JobState,
    RunRecord,
    check_state,
    newest,
)
from wheel_sched_apscheduler.run_times import floor_ms, from_ms, to_ms
from wheel_sched_apscheduler.stores.announced_runs import AnnouncedRuns, announced_workers
from wheel_sched_apscheduler.stores.connection import StoreConnection
from wheel_sched_apscheduler.stores.fair_jobs import refs_of_tags, without_tags
from wheel_sched_apscheduler.stores.layout import (
    HISTORY,
    JOB,
    OCCURRENCE,
    QUARANTINE,
    TAG,
    due_of,
    read_split_item,
)
from wheel_sched_apscheduler.stores.loading import refusal_of
from wheel_sched_apscheduler.stores.repository import PAGE, JobRepository
from wheel_sched_apscheduler.stores.run_records import load_records

Condition = Callable[[Found], bool]
PLACES: dict[JobState, State] = {"scheduled": "due", "paused": "held", "in_flight": "leased", "quarantined": "held"}


class JobQueries:
    """The part of a shared jobstore that needs no scheduler."""

    codec: JobCodec
    connection: StoreConnection
    repository: JobRepository

    @property
    def store(self) -> DelayStore:
        """The delay store, opened on first use.

        Raises:
            StoreError: the server is away, too old, or holds the namespace with other settings.
            ConfigError: the target or an option is wrong.
        """
        return self.connection.store

    # Counting and listing.

    def count(self, state: JobState | None = None) -> int:
        """How many jobs there are, in one state or in all. O(1), except for the states "paused" and "quarantined".

        Raises:
            Rejected: there is no such state.
        """
        sizes = self.store.counts().now
        if state is None:
            return sum(number for (_, topic), number in sizes.items() if topic == JOB)
        check_state(state)
        if state in ("paused", "quarantined"):
            return sum(is_quarantined(found) == (state == "quarantined") for found in self.repository.records("held"))
        return sizes.get((PLACES[state], JOB), 0)

    def iter_jobs(
        self,
        cursor: str | None = None,
        *,
        state: JobState = "scheduled",
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> JobPage:
        """One page of the jobs in a state, scheduled ones by due time. The page may be short and not be the last.

        `since` and `until` bound the due time of scheduled jobs, to the millisecond. Other states ignore them. The due
        time is the next run time, unless the job was put back or given back.

        Raises:
            Rejected: there is no such state, the limit is below 1, or the cursor is not from an earlier page.
        """
        check_state(state)
        place = PLACES[state]
        page = self.store.list_items(
            place,
            topic=JOB,
            least_ms=0 if since is None or place != "due" else max(floor_ms(since), 0),
            greatest_ms=MAX_DUE_MS if until is None or place != "due" else max(to_ms(until), 0),
            cursor=cursor,
            limit=limit,
            matches=(lambda found: is_quarantined(found) == (state == "quarantined")) if place == "held" else None,
        )
        return JobPage([self.entry(found) for found in page.found], page.cursor)

    def entries(self, state: JobState | None = None) -> Iterator[JobEntry]:
        """Every job in a state, or in all states.

        Raises:
            Rejected: there is no such state.
        """
        for chosen in JOB_STATES if state is None else (state,):
            yield from self._entries(chosen)

    def due_between(self, since: datetime, until: datetime) -> Iterator[JobEntry]:
        """Scheduled jobs that are due between two moments, both included. See `iter_jobs`."""
        return self._entries("scheduled", since, until)

    def _entries(
        self, state: JobState, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[JobEntry]:
        cursor = None
        while True:
            page = self.iter_jobs(cursor, state=state, since=since, until=until, limit=PAGE)
            yield from page.jobs
            cursor = page.cursor
            if cursor is None:
                break

    def get_entry(self, job_id: str) -> JobEntry | None:
        """One job; None when there is none."""
        found = self.store.get([job_id])[0]
        return None if found is None or found.topic != JOB else self.entry(found)

    def entry(self, found: Found) -> JobEntry:
        """A job's record as a `JobEntry`. If it cannot be read, the entry has only id, state, tags and reason."""
        state: JobState
        if found.state == "held":
            state = "quarantined" if is_quarantined(found) else "paused"
        else:
            state = "scheduled" if found.state == "due" else "in_flight"
        reason = found.reason.removeprefix(f"{QUARANTINE}: ") if state == "quarantined" else ""
        refusal = refusal_of(found.refs) if state == "scheduled" else None
        if refusal is not None:
            times = f"{refusal.rounds} time{'' if refusal.rounds == 1 else 's'}"
            reason = f"given back {times} since {from_ms(refusal.since_ms)}, last by {refusal.last}"
        tags = tuple(ref.removeprefix(TAG) for ref in found.refs if ref.startswith(TAG))
        try:
            entry = self.codec.head(found.id, found.body, state)
        except Unreadable as error:
            return JobEntry(found.id, state, "?", "?", "?", None, reason=reason or str(error), tags=tags)
        return replace(entry, reason=reason, tags=tags)

    # Running now, and the history.

    def in_flight(self) -> list[InFlightRun]:
        """Occurrences that a process has claimed and not settled, each with its process and the end of its lease.

        Includes those that wait in items of their own, but none that at-most-once delivery has taken out of the store.
        """
        announced = AnnouncedRuns(self.workers())
        records = self.repository.records
        found = (*records("leased", topic=None), *records("due", topic=OCCURRENCE))
        return [announced.run_of(each) for each in found if each.topic in (JOB, OCCURRENCE)]

    def workers(self) -> list[dict[str, Any]]:
        """The processes that have announced runs. A process lists its runs of more than half a second, at most 500.

        Also deletes the items of processes that have ended.
        """
        records, ended = announced_workers(self.store)
        if ended:
            self.store.cancel(ended)
        return records

    def history(self, *, job_id: str | None = None, limit: int = 100) -> list[RunRecord]:
        """How the last occurrences ended, newest first."""
        items = self.repository.records("dead", topic=HISTORY)
        records = (record for found in items for record in load_records(found.body))
        return newest((record for record in records if job_id in (None, record.job_id)), limit)

    # Tags and metadata.

    def find(self, tag: str) -> list[str]:
        """Ids of the jobs with a tag, sorted; at most 1000, any of them if more jobs have the tag."""
        return sorted(self.store.find(f"{TAG}{tag}"))

    def set_tags(self, job_id: str, tags: Sequence[str]) -> None:
        """Replace a job's tags.

        Raises:
            JobLookupError: there is no such job, or its last run is under way.
            Rejected: a tag is not one line, or too long.
        """
        refs = refs_of_tags(tags, self.connection.fair)

        def tagged(found: Found) -> Item:
            return Item(job_id, None, found.body, JOB, (*refs, *without_tags(found.refs)))

        self.repository.change(job_id, tagged, keep_due=True)

    def set_metadata(self, job_id: str, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of a job.

        Raises:
            JobLookupError: there is no such job, or its last run is under way.
            NotSerializable: a value cannot be stored.
            BadSignature, Unreadable: this process cannot read the job.
        """
        self.repository.change(
            job_id,
            lambda found: Item(
                job_id, None, self.codec.rewritten(job_id, found.body, metadata=metadata), JOB, found.refs
            ),
            keep_due=True,
        )

    # Changing.

    def run_now(self, job_id: str, only_if: Condition | None = None) -> None:
        """Make a job due immediately, also one that is paused or quarantined.

        Args:
            job_id: the id of the job.
            only_if: gets the job's present record, and returns whether to change the job. Defaults to None: always.

        Raises:
            JobLookupError: there is no such job, or its last run is under way.
            OtherJob: `only_if` returned False; nothing was changed.
            BadSignature, Unreadable, Forbidden: this process cannot read the job; nothing was changed.
        """
        self._move(job_id, from_ms(self.store.now_ms()), only_if)

    def pause(self, job_id: str, only_if: Condition | None = None) -> None:
        """Take a job out of the schedule and keep it, as `scheduler.pause_job` does. See `run_now`."""
        self._move(job_id, None, only_if)

    def resume(self, job_id: str, only_if: Condition | None = None) -> datetime | None:
        """Schedule a paused job from now on.

        Args:
            job_id: the id of the job.
            only_if: as in `run_now`.

        Returns:
            The job's next run time; None when its trigger has no more run times and the job was removed.

        Raises:
            JobLookupError: there is no such job, or its last run is under way.
            OtherJob: `only_if` returned False; nothing was changed.
            BadSignature, Unreadable, Forbidden: this process cannot read the job; nothing was changed.
        """
        moment: datetime | None = None

        def resumed(found: Found) -> Item:
            _check_condition(found, only_if)
            # take the time after the record is read: a run time that is claimed in between must not run again
            nonlocal moment
            now = from_ms(self.store.now_ms() + 1)
            moment = self.codec.trigger(job_id, found.body).get_next_fire_time(None, now)
            return self._moved(found, moment)

        self.repository.change(job_id, resumed, keep_due=False)
        if moment is None:
            self.store.cancel([job_id])
        return moment

    def add_jobs(
        self, jobs: Sequence[Any], *, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()
    ) -> list[str]:
        """Add jobs, 500 in a round trip, with one wake-up.

        Returns:
            The ids that already exist. Those jobs were not changed.

        Args:
            jobs: `apscheduler.job.Job` objects. `Producer.make` makes such objects.
            metadata: given to each job. Defaults to none.
            tags: given to each job. Defaults to none.

        Raises:
            NotSerializable, Rejected, Forbidden: one of the jobs cannot be stored. No job was stored.
        """
        return self.repository.add_new(jobs, metadata, tags)

    def remove_jobs(self, job_ids: Sequence[str]) -> int:
        """Remove jobs in few round trips. Returns how many of them existed."""
        outcomes = self.store.cancel(job_ids)
        return sum(outcome is not Outcome.ABSENT for outcome in outcomes)

    def _move(self, job_id: str, moment: datetime | None, only_if: Condition | None) -> None:
        def moved(found: Found) -> Item:
            _check_condition(found, only_if)
            return self._moved(found, moment)

        self.repository.change(job_id, moved, keep_due=False)

    def _moved(self, found: Found, moment: datetime | None) -> Item:
        return Item(found.id, due_of(moment), self.codec.moved(found.id, found.body, moment), JOB, found.refs)

    # Quarantine.

    def quarantined(self) -> Iterator[JobEntry]:
        """Jobs that no process could run, with the reason. Leaves out runs that are stored in items of their own."""
        return self.entries("quarantined")

    def release_quarantined(self, job_ids: Sequence[str], only_if: Condition | None = None) -> list[str]:
        """Schedule quarantined jobs again at their next run time, unreadable ones at once.

        A job that still cannot run is quarantined again.

        Args:
            job_ids: the ids of the jobs.
            only_if: gets a job's present record, and returns whether to release the job. Defaults to None: always.

        Returns:
            The ids of the jobs that were released.
        """
        released = []
        for found in self.store.get(job_ids):
            if found is None or not is_quarantined(found) or (only_if is not None and not only_if(found)):
                continue
            try:
                body = read_split_item(unsigned(found.body))[1] if found.topic == OCCURRENCE else found.body
                moment = self.codec.next_run_time(body)
            except Unreadable:
                moment = None
            due_ms = due_of(moment)
            at_ms = self.store.now_ms() if due_ms is None else due_ms
            if self.store.change([Alteration(found.id, "u", at_ms, found.version)])[0] is Outcome.DONE:
                released.append(found.id)
        return released

    def repoint(self, old: str, new: str, *, dry_run: bool = False) -> list[str]:
        """Replace the function `old` by `new` in every job. Releases the changed jobs from quarantine.

        A job is left as it is if another process removes it meanwhile, gives it another function, or has its last run.

        Returns:
            The ids of the jobs that were changed; with `dry_run`, of those that would be changed.

        Raises:
            Forbidden: `new` is outside of the allow-list. Nothing was changed.
            StoreUnavailable, BadSignature, NotHere: other processes change a job again and again, or this process
                cannot read it. The jobs before it were changed and released; a later repeat changes the rest.
        """
        self.codec.allowed.check(new)
        ids = [entry.id for entry in self.entries() if entry.func == old]
        if dry_run:
            return ids
        changed = []
        try:
            for job_id in ids:
                with suppress(JobLookupError, _OtherFunction):
                    self.repository.change(job_id, lambda found: self._with_function(found, old, new), keep_due=True)
                    changed.append(job_id)
        finally:
            self.release_quarantined(changed)
        return changed

    def _with_function(self, found: Found, old: str, new: str) -> Item:
        if self.codec.head(found.id, found.body).func != old:
            raise _OtherFunction
        return Item(found.id, None, self.codec.rewritten(found.id, found.body, func=new), JOB, found.refs)


class _OtherFunction(Exception):
    """The job names another function by now."""


class OtherJob(NotDone):
    """The job is not as the caller saw it. It was not changed."""


def _check_condition(found: Found, only_if: Condition | None) -> None:
    if only_if is not None and not only_if(found):
        raise OtherJob(f"job {found.id!r} was changed meanwhile: it was left as it is")


def is_quarantined(found: Found) -> bool:
    """Whether the item is a job or a run in quarantine."""
    return found.state == "held" and found.reason.startswith(QUARANTINE)
