"""Finds jobs in pages, and counts them by state. Each call reads a bounded number of jobs, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wheel_sched.store import Found
from wheel_sched_apscheduler.entries import JobEntry, JobState, check_state
from wheel_sched_apscheduler.management.trigger_words import trigger_words
from wheel_sched_apscheduler.stores.layout import JOB
from wheel_sched_apscheduler.stores.queries import PLACES, is_quarantined
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

_COUNTED = 50  # at most this many quarantined jobs are counted; a listing with a condition looks at 40 times as many


@dataclass(frozen=True, slots=True)
class JobSearch:
    """Which jobs to find. A job must meet every condition.

    Args:
        state: the state of the jobs. Defaults to "scheduled".
        text: a part of the id, the function or the name; upper and lower case are the same. Defaults to any.
        tag: a tag of the jobs. Defaults to any.
        job_id: find only the job with this id; the other conditions do not count. Defaults to any.
    """

    state: JobState = "scheduled"
    text: str = ""
    tag: str = ""
    job_id: str = ""


class ListedJob(NamedTuple):
    """A job of a page: its entry, and its trigger in plain words."""

    entry: JobEntry
    trigger: str


class ListedJobs(NamedTuple):
    """A page of jobs. `cursor` leads to the next page; None: this page is the last. A page may be short or empty."""

    jobs: Sequence[ListedJob]
    cursor: str | None


class StateCounts(NamedTuple):
    """How many jobs there are in each state. If `exact` is False, more may be quarantined and fewer paused."""

    scheduled: int
    paused: int
    in_flight: int
    quarantined: int
    exact: bool


def search_jobs(store: RedisWheelJobStore, search: JobSearch, cursor: str | None, limit: int) -> ListedJobs:
    """One page of the jobs that a search finds, scheduled ones by due time; with a tag, by id, from at most 1000 jobs.

    Args:
        store: the jobstore.
        search: the conditions.
        cursor: the cursor of the page before; None: the first page.
        limit: the largest number of jobs.

    Raises:
        Rejected: there is no such state, a tag cannot have that form, or the cursor is not from an earlier page.
    """
    check_state(search.state)
    if search.job_id:
        found = [one for one in store.store.get([search.job_id]) if one is not None and one.topic == JOB]
        return ListedJobs([listed_job(store, one) for one in found], None)
    if search.tag:
        return _tagged(store, search, cursor or "", limit)
    place = PLACES[search.state]
    matches = _condition(store, search) if search.text or place == "held" else None
    page = store.store.list_items(place, topic=JOB, cursor=cursor, limit=limit, matches=matches)
    return ListedJobs([listed_job(store, one) for one in page.found], page.cursor)


def listed_job(store: RedisWheelJobStore, found: Found) -> ListedJob:
    """A stored job with its trigger in words. The job is not loaded, and nothing is imported or unpickled."""
    entry = store.entry(found)
    return ListedJob(entry, trigger_words(store.codec.shown_trigger(found.body)) or entry.trigger)


def state_counts(store: RedisWheelJobStore) -> StateCounts:
    """Count the jobs by state. If very many are held, only some are looked at, and the others count as paused."""
    now = store.store.counts().now
    held, quarantined, exact = now.get(("held", JOB), 0), 0, True
    if held:
        page = store.store.list_items("held", topic=JOB, limit=_COUNTED, matches=is_quarantined)
        quarantined, exact = len(page.found), page.cursor is None
    return StateCounts(
        now.get(("due", JOB), 0), max(0, held - quarantined), now.get(("leased", JOB), 0), quarantined, exact
    )


def _condition(store: RedisWheelJobStore, search: JobSearch) -> Callable[[Found], bool]:
    wanted = search.text.casefold()

    def matches(found: Found) -> bool:
        if found.state == "held" and is_quarantined(found) != (search.state == "quarantined"):
            return False
        if not wanted or wanted in found.id.casefold():
            return True
        entry = store.entry(found)
        return wanted in entry.func.casefold() or wanted in entry.name.casefold()

    return matches


def _tagged(store: RedisWheelJobStore, search: JobSearch, behind: str, limit: int) -> ListedJobs:
    """Jobs with a tag, by id. The store finds at most a thousand of them."""
    ids = [job_id for job_id in store.find(search.tag) if job_id > behind]
    wanted, jobs = search.text.casefold(), []
    for at in range(0, len(ids), limit):
        for found in store.store.get(ids[at : at + limit]):
            if found is None or found.topic != JOB:
                continue
            one = listed_job(store, found)
            texts = (one.entry.id, one.entry.func, one.entry.name)
            if one.entry.state == search.state and any(wanted in text.casefold() for text in texts):
                jobs.append(one)
                if len(jobs) == limit:
                    return ListedJobs(jobs, found.id if found.id != ids[-1] else None)
    return ListedJobs(jobs, None)
