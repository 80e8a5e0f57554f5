"""The shelf: jobs looked up, added, changed and removed outside of a pass, from any process.

Each change is decided by the store in one script, so two processes never both add an id or change what is gone.
Nothing waits for a run to end, whoever has it: a job in flight is changed where it lies, and its holder writes what
follows with the change; a job whose last run is under way is gone for everybody but its holder, and its id is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from apscheduler.job import Job
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError

from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import Found, Item, Outcome, State
from wheel_sched.store.delay_store import values_of
from wheel_sched.store.operations import Alteration, Call, Find, Schedule
from wheel_sched.store.plans import shard_of
from wheel_sched_apscheduler.codec import Unreadable
from wheel_sched_apscheduler.instants import earliest, from_ms, to_us
from wheel_sched_apscheduler.run_times import missed_runs
from wheel_sched_apscheduler.stores.layout import JOB, OCCURRENCE, RUN, RUNNING, due_of, occurrence_body, occurrence_id
from wheel_sched_apscheduler.stores.loading import unmarked

if TYPE_CHECKING:
    from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

TRIES = 50  # of a change that finds that somebody else was faster, each time
_STATES: tuple[State, ...] = ("due", "held", "fly")
_PAGE = 500


class LookedUpJob(Job):
    """A job as a look-up gave it: it knows its run time of then, so that a change of something else leaves it alone."""

    __slots__ = ("read_run_time",)

    read_run_time: datetime | None


class Shelf:
    """See the module; `home` is the jobstore it belongs to."""

    def __init__(self, home: RedisWheelJobStore) -> None:
        self._home = home

    # Looking.

    def head(self) -> datetime | None:
        """The earliest next run time of all."""
        home = self._home
        heads = [window.due_head_ms for window in home.store.windows(0, 0)]
        moments: list[datetime | None] = [from_ms(head) for head in heads if head is not None]
        with home._io:
            moments += [fire.next_run_time for fire in home._flights.flying.values()]
        return earliest(moments)

    def lookup(self, job_id: str) -> Any:
        """The job, None when there is none or its last run is under way.

        Raises:
            StoreError, LookupError: it is there and cannot be loaded.
        """
        found = self._home.store.get([job_id])[0]
        if found is None or found.topic != JOB:
            return None
        return self._shown(found)

    def all_jobs(self) -> list[Any]:
        """All that can be loaded, by next run time, then id; paused ones last."""
        jobs = []
        for found in self.pages(_STATES):
            try:
                job = self._shown(found)
            except Exception as error:  # one that cannot be loaded must not hide the others
                self._home._logger.warning("Job %r cannot be loaded and is left out of the list: %s", found.id, error)
                continue
            if job is not None:
                jobs.append(job)
        jobs.sort(key=_order)
        return jobs

    def pages(self, states: Sequence[State]) -> Iterator[Found]:
        """Every job in these states; what changes its place meanwhile may come twice or not at all."""
        seen = set()
        for state in states:
            cursor = None
            while True:
                page = self._home.store.list_items(state, topic=JOB, cursor=cursor, limit=_PAGE)
                for found in page.found:
                    if found.id not in seen:
                        seen.add(found.id)
                        yield found
                cursor = page.cursor
                if cursor is None:
                    break

    def _shown(self, found: Found) -> Any:
        """The job as a scheduler would show it; None when its last run is under way, or it was removed in its run."""
        home = self._home
        job = home.codec.decode(found.id, found.body, LookedUpJob).job
        job._scheduler, job._jobstore_alias = home._scheduler, home._alias
        if found.state == "fly":
            if _is_cancelled(found):
                return None
            if job.next_run_time is not None:
                job.next_run_time = self._following(job, found)
                if job.next_run_time is None:
                    return None
        job.read_run_time = job.next_run_time
        return job

    def _following(self, job: Any, found: Found) -> datetime | None:
        """When a job that is in flight runs again: as its holder has planned it, or will."""
        fire = self._home._flights.flying.get(found.id)
        if fire is not None and fire.planned and fire.ticket.version == found.version:
            return fire.next_run_time
        return self._runs(job)[1]

    def _runs(self, job: Any) -> tuple[list[datetime], datetime | None]:
        try:
            return missed_runs(job, from_ms(self._home.store_now_ms()), quiet=True)
        except Exception:  # a trigger of somebody's own; its holder will meet the same
            return [], job.next_run_time

    def is_gone(self, found: Found) -> bool:
        """Whether all that is left of a job is a run under way: nobody can change it, and its id is free."""
        if found.state != "fly":
            return False
        if _is_cancelled(found):
            return True
        try:
            job = self._home.codec.decode(found.id, found.body, resolve=False).job
        except Exception:  # also what a trigger of somebody's own raises; whoever can read it will know
            return False
        return job.next_run_time is not None and self._following(job, found) is None

    # Changing.

    def add(self, jobs: Sequence[Any], metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()) -> None:
        """Store new jobs.

        Raises:
            ConflictingIdError: of the first id that exists; the others were stored.
        """
        for job_id in self.add_new(jobs, metadata, tags):
            raise ConflictingIdError(job_id)

    def add_new(
        self, jobs: Sequence[Any], metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()
    ) -> list[str]:
        """Store new jobs; ids that exist are left alone. The answer: these ids."""
        items = [self.item(job, metadata, tags) for job in jobs]
        if len(items) == 1 and self._home._counts_all:
            outcomes = [self._store_one(items[0])]
        else:
            items = self._beside_runs(items)
            outcomes = self._home.store.schedule(items).outcomes
        taken = [item for item, outcome in zip(items, outcomes, strict=True) if outcome is Outcome.DUPLICATE]
        return [item.id for item in taken if not self._store_beside(item)]

    def _store_one(self, item: Item) -> Outcome:
        """Store a job, and see in the same round trip whether a run of an earlier one of its id is under way."""
        store = self._home.store
        item.check()
        shard = shard_of(item.id, store.shards)
        calls: list[Call[Any]] = [Call(shard, Schedule([item])), Call(shard, Find(f"run:{item.id}", 1))]
        stored, runs = values_of(store.execute(calls))
        outcome: Outcome = stored.outcomes[0]
        if runs and outcome is not Outcome.DUPLICATE:
            store.replace(replace(item, refs=(*item.refs, RUNNING)), keep_due=True, in_flight=True)
        return outcome

    def _beside_runs(self, items: list[Item]) -> list[Item]:
        """The items, those marked of whose id a run of an earlier job is under way. Where none runs, one look."""
        store = self._home.store
        if not items or not self._home._counts_all:
            return items
        if not any(number for (_, topic), number in store.counts().now.items() if topic in (OCCURRENCE, RUN)):
            return items
        marked: list[Item] = []
        for at in range(0, len(items), _PAGE):
            part = items[at : at + _PAGE]
            for item in part:
                item.check()
            runs = values_of(
                store.execute([Call(shard_of(item.id, store.shards), Find(f"run:{item.id}", 1)) for item in part])
            )
            marked += [
                replace(item, refs=(*item.refs, RUNNING)) if found else item
                for item, found in zip(part, runs, strict=True)
            ]
        return marked

    def _store_beside(self, item: Item) -> bool:
        """Store a job under an id that is there, but free: only a run of an earlier job is left of it."""
        store = self._home.store
        for _ in range(TRIES):
            found = store.get([item.id])[0]
            if found is not None:
                if found.topic != JOB or not self.is_gone(found):
                    return False
                if store.change([self._aside(found)])[0] is Outcome.DUPLICATE:
                    return False  # the same run is there already: two of one run time are under way
                item = replace(item, refs=(*(ref for ref in item.refs if ref != RUNNING), RUNNING))
            if store.schedule([item]).outcomes[0] is not Outcome.DUPLICATE:
                return True
        return False

    def _aside(self, found: Found) -> Alteration:
        """The run under way goes on as an occurrence; its holder finds it there, see `flights`."""
        home = self._home
        due_ms = int(found.reason.lstrip("!").split(":")[1])
        run_times: list[datetime] = []
        if not _is_cancelled(found):  # else it does not come again whatever happens
            job = home.codec.decode(found.id, found.body, resolve=False).job
            run_times = self._runs(job)[0] or [job.next_run_time]
        item_id = occurrence_id(found.id, due_ms)
        body = home.codec.seal(item_id, occurrence_body(run_times, found.body))
        route = found.id if home.store.shards > 1 else None
        occurrence = Item(item_id, None, body, OCCURRENCE, (f"run:{found.id}",), route)
        return Alteration(found.id, "m", item_id, found.version, occurrence)

    def item(self, job: Any, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()) -> Item:
        """The job as the store takes it."""
        refs = tuple(f"tag:{tag}" for tag in tags)
        return Item(job.id, due_of(job.next_run_time), self._home.codec.encode(job, metadata), JOB, refs)

    def update(self, job: Any) -> None:
        """Replace a job; its metadata and tags stay. So does its run time, if it is the one it was looked up with.

        Raises:
            JobLookupError: there is none of that id, or its last run is under way.
            StoreUnavailable: others changed it again and again; nothing was changed.
        """
        codec = self._home.codec
        codec.encode(job)  # before the store is asked: a job that cannot be stored changes nothing
        moment = job.next_run_time
        same = isinstance(job, LookedUpJob) and _us(moment) == _us(getattr(job, "read_run_time", _NEVER_READ))

        def renewed(found: Found) -> Item:
            try:
                metadata = codec.head(found.id, found.body).metadata
                kept = codec.next_run_time(found.body) if same else moment
            except Unreadable as error:
                self._home._logger.warning(
                    "What was stored of job %r cannot be read and is replaced; its metadata is lost: %s", job.id, error
                )
                metadata, kept = {}, moment
            body = codec.encode(job, metadata)
            if same:
                body = codec.moved(job.id, body, kept)
            return Item(job.id, due_of(moment), body, JOB, unmarked(found.refs))

        if not self.change(job.id, renewed, keep_due=same):
            raise JobLookupError(job.id)

    def change(self, job_id: str, make: Callable[[Found], Item], *, keep_due: bool) -> bool:
        """Replace a job wherever it is by what `make` makes of it. False = not there.

        Raises:
            StoreUnavailable: others changed it again and again; nothing was changed.
        """
        store = self._home.store
        for _ in range(TRIES):
            found = store.get([job_id])[0]
            if found is None or found.topic != JOB or self.is_gone(found):
                return False
            # one that is claimed only now must be looked at again: it may be its last run
            in_flight = found.state == "fly"
            outcome = store.replace(make(found), keep_due=keep_due, if_version=found.version, in_flight=in_flight)
            if outcome is Outcome.DONE:
                return True
        raise StoreUnavailable(f"job {job_id!r} is changed by others without a break: nothing was changed; try again")

    def remove(self, job_id: str) -> None:
        """Remove a job; one that runs finishes and does not come again.

        Raises:
            JobLookupError: there is none of that id.
        """
        home = self._home
        with home._io:
            fire = home._flights.flying.get(job_id)
        if fire is not None and fire.planned and fire.next_run_time is None:
            found = home.store.get([job_id])[0]
            if found is None or found.version == fire.ticket.version:
                raise JobLookupError(job_id)  # its last run is under way: as with stock, it is gone
        outcome = self.cancel([job_id])[0]
        if outcome is Outcome.ABSENT:
            raise JobLookupError(job_id)
        if outcome is Outcome.CANCELLED and fire is not None:
            fire.plan(None)

    def cancel(self, job_ids: Sequence[str]) -> list[Outcome]:
        """Remove jobs, and say of each whether it was there."""
        return self._home.store.cancel(job_ids)

    def remove_all(self) -> None:
        """Remove every job."""
        while True:
            ids = [found.id for found in self._some_ids()]
            if not ids:
                break
            self.cancel(ids)
        flying = [found.id for found in self.pages(("fly",))]
        if flying:
            self.cancel(flying)

    def _some_ids(self) -> list[Found]:
        states: tuple[State, ...] = ("due", "held")
        for state in states:
            page = self._home.store.list_items(state, topic=JOB, limit=_PAGE)
            if page.found:
                return page.found
        return []


def _order(job: Any) -> tuple[bool, int, str]:
    moment = job.next_run_time
    return moment is None, 0 if moment is None else to_us(moment), job.id


_NEVER_READ = from_ms(0)


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment)


def _is_cancelled(found: Found) -> bool:
    return found.state == "fly" and found.reason.startswith("!")
