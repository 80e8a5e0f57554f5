"""The shelf: jobs looked up, added, changed and removed outside of a pass, from any process.

Each change is decided by the store in one script, so two processes never both add an id or change what is gone. A job
that is in the hands of another process for a moment is asked for again; one in the hands of this process is changed
there, and its next run is written with the change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.triggers.date import DateTrigger

from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import Found, Item, Outcome, State
from wheel_sched_apscheduler.fire import Fire
from wheel_sched_apscheduler.flights import next_run_of
from wheel_sched_apscheduler.instants import earliest, from_ms, to_us
from wheel_sched_apscheduler.layout import JOB, due_of

if TYPE_CHECKING:
    from wheel_sched_apscheduler.redis_store import RedisWheelJobStore

PATIENCE_S = 3.0  # how long a change waits for another process to let go of the job
POLL_S = 0.005
_STATES: tuple[State, ...] = ("due", "held", "fly")
_PAGE = 500


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
            moments += [next_run_of(fire) for fire in home._flights.flying.values()]
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
        """The job as a scheduler would show it; None when its last run is under way."""
        home = self._home
        job = home.codec.decode(found.id, found.body).job
        job._scheduler, job._jobstore_alias = home._scheduler, home._alias
        if found.state == "fly":
            fire = home._flights.flying.get(found.id)
            if fire is not None and fire.planned:
                moment = next_run_of(fire)
                if moment is None:
                    return None
                job.next_run_time = moment
            elif fire is None and type(job.trigger) is DateTrigger:
                return None
        return job

    # Changing.

    def add(self, jobs: Sequence[Any], metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()) -> None:
        """Store new jobs.

        Raises:
            ConflictingIdError: of the first id that exists; the others were stored.
        """
        items = [self.item(job, metadata, tags) for job in jobs]
        outcomes = self._home.store.schedule(items).outcomes
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome is Outcome.DUPLICATE and not self._follow(job):
                raise ConflictingIdError(job.id)

    def item(self, job: Any, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()) -> Item:
        """The job as the store takes it."""
        refs = tuple(f"tag:{tag}" for tag in tags)
        return Item(job.id, due_of(job.next_run_time), self._home.codec.encode(job, metadata), JOB, refs)

    def update(self, job: Any) -> None:
        """Replace a job; its metadata and tags stay.

        Raises:
            JobLookupError: there is none of that id.
            StoreUnavailable: another process holds it and does not let go; nothing was changed.
        """
        home = self._home
        # before the store is asked: a job that cannot be stored changes nothing
        home.codec.encode(job)

        def replace(found: Found) -> Outcome:
            metadata = home.codec.head(found.id, found.body).metadata
            item = Item(job.id, due_of(job.next_run_time), home.codec.encode(job, metadata), JOB, found.refs)
            return home.store.replace(item, if_version=found.version)

        if not self.change(job.id, replace, lambda fire: self._override(fire, job)):
            raise JobLookupError(job.id)

    def change(self, job_id: str, make: Callable[[Found], Outcome], here: Callable[[Fire], bool | None]) -> bool:
        """Change a job wherever it is: in the store by `make`, in this process's hands by `here`. False = not there.

        `here` answers None to be asked again when the job is back in the store.

        Raises:
            StoreUnavailable: another process holds it and does not let go; nothing was changed.
        """
        home = self._home
        until_s = time.monotonic() + PATIENCE_S
        while True:
            found = home.store.get([job_id])[0]
            if found is None or found.topic != JOB:
                return False
            if found.state == "fly":
                with home._io:
                    fire = home._flights.flying.get(job_id)
                    done = None if fire is None else here(fire)
                if done is not None:
                    return done
            else:
                outcome = make(found)
                if outcome is Outcome.DONE:
                    return True
                if outcome is Outcome.ABSENT:
                    return False
            if time.monotonic() > until_s:
                raise StoreUnavailable(
                    f"job {job_id!r} is in the hands of another process that does not let go: nothing was changed; "
                    "try again when its run or its lease has ended"
                )
            time.sleep(POLL_S)  # another process's doing; there is nothing to wait on

    def _override(self, fire: Fire, job: Any) -> bool:
        """Change a job that this process is running; False when that is its last run."""
        if fire.planned and next_run_of(fire) is None:
            return False
        self._supersede(fire, job)
        return True

    def _supersede(self, fire: Fire, job: Any) -> None:
        fire.overriding = job
        if fire.planned:
            fire.plan(job.next_run_time)
            self._home._flights.handed_over([fire])
            self._home.flush()

    def _follow(self, job: Any) -> bool:
        """A new job under the id of one whose last run is under way here: it comes after that run."""
        home = self._home
        with home._io:
            fire = home._flights.flying.get(job.id)
            if fire is None or not fire.planned or next_run_of(fire) is not None:
                return False
            self._supersede(fire, job)
        return True

    def remove(self, job_id: str) -> None:
        """Remove a job; one that runs finishes and does not come again.

        Raises:
            JobLookupError: there is none of that id.
        """
        home = self._home
        with home._io:
            fire = home._flights.flying.get(job_id)
            if fire is not None and fire.planned and next_run_of(fire) is None:
                raise JobLookupError(job_id)  # its last run is under way: as with stock, it is gone
        outcome = self.cancel([job_id])[0]
        if outcome is Outcome.ABSENT:
            raise JobLookupError(job_id)
        if outcome is Outcome.CANCELLED and fire is not None:
            fire.overriding = None
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
