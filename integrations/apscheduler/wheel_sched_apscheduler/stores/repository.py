"""JobRepository: looks up, adds, changes and removes the stored jobs, from any process.

The store makes each change in one script. So two processes never both add an id, and no process changes a removed job.
No change waits for the end of a run. A change of a job in flight replaces its record at once, and the process that runs
the job plans the next run by the new record. For other processes, a job in its last run is removed: its id is free.

Threads: any thread may call any method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from apscheduler.job import Job
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError

from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import Found, Item, Outcome, State
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.change import Alteration
from wheel_sched.store.core.delay_store import values_of
from wheel_sched.store.core.get import Find
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.core.schedule import Schedule
from wheel_sched_apscheduler.codec import JobCodec, Unreadable
from wheel_sched_apscheduler.occurrence import Occurrence
from wheel_sched_apscheduler.run_times import earliest, from_ms, missed_runs, to_us
from wheel_sched_apscheduler.stores.connection import StoreConnection
from wheel_sched_apscheduler.stores.fair_jobs import refs_of_tags
from wheel_sched_apscheduler.stores.layout import (
    JOB,
    OCCURRENCE,
    RUN,
    RUNNING,
    RunWriter,
    claimed_due_ms,
    due_of,
    is_cancelled,
    run_ref,
)
from wheel_sched_apscheduler.stores.loading import without_refusal

TRIES = 50  # how often a change is tried, each time after another process has changed the job
_STATES: tuple[State, ...] = ("due", "held", "leased")
PAGE = 500  # records in a round trip


class LookedUpJob(Job):
    """A job from a look-up. It remembers its run time, so that `update` knows whether the run time was changed."""

    __slots__ = ("read_run_time",)

    read_run_time: datetime | None


class JobRepository:
    """Looks up, adds, changes and removes the stored jobs.

    Args:
        connection: the connection to the store.
        codec: reads and writes jobs.
        planner_of: see `ClaimTracker.planner_of`.
        counts_runs: whether runs are counted over all processes. See `_with_running_refs`.
    """

    def __init__(
        self,
        connection: StoreConnection,
        codec: JobCodec,
        planner_of: Callable[[str, int], Occurrence | None],
        *,
        counts_runs: bool,
    ) -> None:
        self._connection = connection
        self._codec = codec
        self._writer = RunWriter(codec, connection.shards)
        self._planner_of = planner_of
        self._counts_runs = counts_runs

    # Looking up.

    def head(self) -> datetime | None:
        """The earliest due time of the items that wait: of a job, its next run time."""
        heads = [window.due_head_ms for window in self._connection.store.windows(0, 0)]
        return earliest([from_ms(head) for head in heads if head is not None])

    def lookup(self, job_id: str) -> LookedUpJob | None:
        """The job with this id; None when there is none, or its last run is in flight.

        Raises:
            StoreError, LookupError: the job exists and cannot be loaded.
        """
        found = self._connection.store.get([job_id])[0]
        if found is None or found.topic != JOB:
            return None
        return self._loaded(found)

    def all_jobs(self) -> list[LookedUpJob]:
        """All jobs that can be loaded, except those in their last run, by next run time, then id; paused ones last."""
        jobs = []
        for found in self.records(*_STATES):
            try:
                job = self._loaded(found)
            except Exception as error:  # a job that cannot be loaded must not hide the others
                self._connection.logger.warning(
                    "Job %r cannot be loaded and is left out of the list: %s", found.id, error
                )
                continue
            if job is not None:
                jobs.append(job)
        jobs.sort(key=_order)
        return jobs

    def records(self, *states: State, topic: str | None = JOB) -> Iterator[Found]:
        """Every record in these states. May leave out a record that changes its state during the call.

        Args:
            states: the states, read in this order.
            topic: see `layout`; None = all. Defaults to jobs.
        """
        seen = set()
        for state in states:
            cursor = None
            while True:
                page = self._connection.store.list_items(state, topic=topic, cursor=cursor, limit=PAGE)
                for found in page.found:
                    if found.id not in seen:
                        seen.add(found.id)
                        yield found
                cursor = page.cursor
                if cursor is None:
                    break

    def _loaded(self, found: Found) -> LookedUpJob | None:
        """The job as a scheduler shows it. None during its final run, or if it was removed while it ran."""
        job: Any = self._codec.decode(found.id, found.body, LookedUpJob).job
        if found.state == "leased":
            if is_cancelled(found):
                return None
            if job.next_run_time is not None:
                job.next_run_time = self._following(job, found)
                if job.next_run_time is None:
                    return None
        job.read_run_time = job.next_run_time
        return job  # type: ignore[no-any-return]

    def _following(self, job: Any, found: Found) -> datetime | None:
        """The next run time of a job in flight, as the process that runs it has planned or will plan it."""
        planner = self._planner_of(found.id, found.version)
        if planner is not None:
            return planner.next_run_time
        return self._runs(job, found)[1]

    def _runs(self, job: Any, found: Found) -> tuple[list[datetime], datetime | None]:
        """The run times of a job in flight, and the next one, as the process that runs it computes them."""
        now, moment = from_ms(self._connection.now_ms()), job.next_run_time
        if moment is not None and (due_of(moment) or 0) <= claimed_due_ms(found):  # otherwise the job was rescheduled
            now = max(now, moment)
        try:
            return missed_runs(job, now, quiet=True)
        except Exception:  # a user's trigger may raise anything; the process that runs the job gets the same error
            return [], job.next_run_time

    def is_gone(self, found: Found) -> bool:
        """Whether a job is in its last run. Then no process can change it, and a new job may take its id."""
        if found.state != "leased":
            return False
        if is_cancelled(found):
            return True
        try:
            job = self._codec.decode(found.id, found.body, resolve=False).job
        except Exception:  # only a process that can read the job knows its next run time
            return False
        return job.next_run_time is not None and self._following(job, found) is None

    # Adding.

    def check(self, job: Any) -> None:
        """Check whether the codec can write a job. No I/O.

        Raises:
            NotSerializable, Forbidden: the job cannot be stored; the text says why.
        """
        self._codec.encode(job)

    def add(
        self,
        job: Any,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        *,
        replace_existing: bool = False,
    ) -> None:
        """Store a new job.

        Args:
            job: the job.
            metadata: plain values. Defaults to none.
            tags: names by which the job can be found. Defaults to none.
            replace_existing: whether to replace a job with this id; the old metadata and tags stay. Defaults to False.

        Raises:
            ConflictingIdError: the id exists. Nothing was changed. With `replace_existing`: the errors of `update`.
        """
        if self.add_new([job], metadata, tags):
            if not replace_existing:
                raise ConflictingIdError(job.id)
            self.update(job)

    def add_new(
        self, jobs: Sequence[Any], metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()
    ) -> list[str]:
        """Store new jobs. Returns the ids that already exist; those jobs are not changed."""
        items = [self._item(job, metadata, tags) for job in jobs]
        if len(items) == 1 and self._counts_runs:
            outcomes = [self._store_one(items[0])]
        else:
            items = self._with_running_refs(items)
            outcomes = self._connection.store.schedule(items).outcomes
        taken = [item for item, outcome in zip(items, outcomes, strict=True) if outcome is Outcome.DUPLICATE]
        return [item.id for item in taken if not self._store_beside_run(item)]

    def _item(self, job: Any, metadata: Mapping[str, Any] | None, tags: Sequence[str]) -> Item:
        refs = refs_of_tags(tags, self._connection.fair)
        return Item(job.id, due_of(job.next_run_time), self._codec.encode(job, metadata), JOB, refs)

    def _store_one(self, item: Item) -> Outcome:
        """Store a job. The same round trip looks for a run of an earlier job with this id."""
        store = self._connection.store
        item.check()
        shard = shard_of(item.id, store.shards)
        calls: list[Call[Any]] = [Call(shard, Schedule([item])), Call(shard, Find(run_ref(item.id), 1))]
        stored, runs = values_of(store.execute(calls))
        outcome: Outcome = stored.outcomes[0]
        if runs.ids and outcome is not Outcome.DUPLICATE:
            found = store.get([item.id])[0]
            if found is not None and found.body == item.body:  # otherwise the job has already run or was changed
                marked = replace(item, refs=(*item.refs, RUNNING))
                store.replace(marked, keep_due=True, if_version=found.version, in_flight=True)
        return outcome

    def _with_running_refs(self, items: list[Item]) -> list[Item]:
        """Add the ref `running` to each item whose id an earlier job had, if a run of that job is under way.

        If the counts of the store show that no job has such a run, this looks no item up.
        """
        store = self._connection.store
        if not items or not self._counts_runs:
            return items
        if not any(number for (_, topic), number in store.counts().now.items() if topic in (OCCURRENCE, RUN)):
            return items
        marked: list[Item] = []
        for at in range(0, len(items), PAGE):
            part = items[at : at + PAGE]
            for item in part:
                item.check()
            runs = values_of(
                store.execute([Call(shard_of(item.id, store.shards), Find(run_ref(item.id), 1)) for item in part])
            )
            marked += [
                replace(item, refs=(*item.refs, RUNNING)) if found.ids else item
                for item, found in zip(part, runs, strict=True)
            ]
        return marked

    def _store_beside_run(self, item: Item) -> bool:
        """Store a new job if the old job with its id is in its last run or has ended. Returns whether it was stored."""
        store = self._connection.store
        for _ in range(TRIES):
            found = store.get([item.id])[0]
            if found is not None:
                if found.topic != JOB or not self.is_gone(found):
                    return False
                if store.change([self._move_to_split_item(found)])[0] is Outcome.DUPLICATE:
                    return False  # two runs with the same run time would be under way
                item = replace(item, refs=(*(ref for ref in item.refs if ref != RUNNING), RUNNING))
            if store.schedule([item]).outcomes[0] is not Outcome.DUPLICATE:
                return True
        return False

    def _move_to_split_item(self, found: Found) -> Alteration:
        """The change that moves a run in flight into an item of its own. The run's process finds it there."""
        run_times: list[datetime] = []
        if not is_cancelled(found):  # a cancelled run never comes again
            job = self._codec.decode(found.id, found.body, resolve=False).job
            run_times = self._runs(job, found)[0] or [job.next_run_time]
        split_item = self._writer.split_item(found.id, claimed_due_ms(found), run_times, found.body, due_ms=None)
        return Alteration(found.id, "m", split_item.id, found.version, split_item)

    # Changing.

    def update(self, job: Any) -> None:
        """Replace a job; metadata and tags stay. If `job` has the run time of its look-up, the stored run time stays.

        Raises:
            JobLookupError: there is no job with this id, or its last run is under way.
            StoreUnavailable: other processes changed the job again and again. Nothing was changed. See also `check`.
        """
        codec = self._codec
        codec.encode(job)  # before any call: a job that cannot be stored changes nothing
        moment = job.next_run_time
        same = isinstance(job, LookedUpJob) and _us(moment) == _us(getattr(job, "read_run_time", _NEVER_READ))

        def renewed(found: Found) -> Item:
            try:
                metadata = codec.head(found.id, found.body).metadata
                kept = codec.next_run_time(found.body) if same else moment
            except Unreadable as error:
                self._connection.logger.warning(
                    "The stored job %r cannot be read and is replaced; its metadata is lost: %s", job.id, error
                )
                metadata, kept = {}, moment
            body = codec.encode(job, metadata)
            if same:
                body = codec.moved(job.id, body, kept)
            return Item(job.id, due_of(moment), body, JOB, without_refusal(found.refs))

        self.change(job.id, renewed, keep_due=same)

    def change(self, job_id: str, make: Callable[[Found], Item], *, keep_due: bool) -> None:
        """Replace a job, waiting or in flight, by the item that `make` makes of its record.

        Args:
            job_id: the id of the job.
            make: makes the new item. Called again when another process has changed the job in between.
            keep_due: whether the job keeps its due time.

        Raises:
            JobLookupError: there is no job with this id, or its last run is under way.
            StoreUnavailable: other processes changed the job again and again; nothing was changed.
        """
        store = self._connection.store
        for _ in range(TRIES):
            found = store.get([job_id])[0]
            if found is None or found.topic != JOB or self.is_gone(found):
                raise JobLookupError(job_id)
            in_flight = found.state == "leased"  # a job that was claimed after the look-up may be in its last run
            outcome = store.replace(make(found), keep_due=keep_due, if_version=found.version, in_flight=in_flight)
            if outcome is Outcome.DONE:
                return
        raise StoreUnavailable(f"other processes change job {job_id!r} all the time: nothing was changed; try again")

    # Removing.

    def remove(self, job_id: str, occurrence: Occurrence | None = None) -> None:
        """Remove a job. If it runs, the run finishes. Only a long run whose process is lost may come again after that.

        Args:
            job_id: the id of the job.
            occurrence: this process's occurrence that has claimed the job. Defaults to None.

        Raises:
            JobLookupError: there is no job with this id, or `occurrence` is its last run.
        """
        if occurrence is not None and occurrence.planned and occurrence.next_run_time is None:
            found = self._connection.store.get([job_id])[0]
            if found is None or found.version == occurrence.handle.version:
                raise JobLookupError(job_id)  # its last run is in flight, so it counts as removed, as in stock
        outcome = self._connection.store.cancel([job_id])[0]
        if outcome is Outcome.ABSENT:
            raise JobLookupError(job_id)
        if outcome is Outcome.CANCELLED and occurrence is not None:
            occurrence.plan(None)

    def remove_all(self) -> None:
        """Remove every job. See `remove`."""
        while True:
            ids = self._some_ids()
            if not ids:
                break
            self._connection.store.cancel(ids)
        in_flight = [found.id for found in self.records("leased")]
        if in_flight:
            self._connection.store.cancel(in_flight)

    def _some_ids(self) -> list[str]:
        states: tuple[State, ...] = ("due", "held")
        for state in states:
            page = self._connection.store.list_items(state, topic=JOB, limit=PAGE)
            if page.found:
                return [found.id for found in page.found]
        return []


def _order(job: Any) -> tuple[bool, int, str]:
    moment = job.next_run_time
    return moment is None, 0 if moment is None else to_us(moment), job.id


_NEVER_READ = from_ms(0)


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment)
