"""The runs under way and the last runs, in bounded reads. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheel_sched.store import Found
from wheel_sched.store.core.items import MAX_DUE_MS
from wheel_sched_apscheduler.entries import InFlightRun, RunRecord, newest
from wheel_sched_apscheduler.stores.announced_runs import AnnouncedRuns, announced_workers
from wheel_sched_apscheduler.stores.layout import HISTORY, JOB, OCCURRENCE, run_ref
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore
from wheel_sched_apscheduler.stores.run_records import load_records

# The newest records are read first: those of the last minute, then those of the last ten minutes, and so on. The caller
# mostly wants few records, so the first windows are enough.
_WINDOWS_MS = (60_000, 600_000, 3_600_000, 6 * 3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000)
_ITEMS_A_PAGE = 100  # an item has up to fifty records
_PAGES = 20  # with 100 items each, twice the history that a jobstore keeps by default
_SHORTEST_LEASE_MS = 60_000


class RunningPage(NamedTuple):
    """A page of the runs under way, by the end of their leases; then long runs. `cursor`: as in other listings."""

    runs: Sequence[InFlightRun]
    cursor: str | None


class LastRuns(NamedTuple):
    """How the last runs ended, the newest first. If `complete` is False, older records were not read."""

    records: Sequence[RunRecord]
    complete: bool


def running_page(store: RedisWheelJobStore, cursor: str | None, limit: int) -> RunningPage:
    """One page of the runs that a process has claimed and not settled, with the process and the end of the lease.

    The first page also has up to `limit` long runs, which are stored in items of their own. No page has more of these.

    Raises:
        Rejected: the cursor is not from an earlier page.
    """
    workers, _ = announced_workers(store.store)
    announced = AnnouncedRuns(workers)
    page = store.store.list_items(
        "leased", cursor=cursor, limit=limit, matches=lambda found: found.topic in (JOB, OCCURRENCE)
    )
    found = list(page.found)
    if cursor is None:  # a long run continues in an item that is due when the lease ends
        until_ms = store.store.now_ms() + _longest_lease_ms(workers)
        found += store.store.list_items("due", topic=OCCURRENCE, greatest_ms=until_ms, limit=limit).found
    return RunningPage([announced.run_of(one) for one in found], page.cursor)


def runs_of_job(store: RedisWheelJobStore, job_id: str) -> list[InFlightRun]:
    """The runs of one job that have not ended."""
    ids = store.store.find(run_ref(job_id))
    route = job_id if store.store.shards > 1 else None
    found: list[Found | None] = [*store.store.get([job_id]), *(store.store.get(ids, route=route) if ids else ())]
    announced = AnnouncedRuns(announced_workers(store.store)[0])
    return [
        announced.run_of(one)
        for one in found
        if one is not None
        and ((one.topic == JOB and one.state == "leased") or (one.topic == OCCURRENCE and one.state != "held"))
    ]


def last_runs(store: RedisWheelJobStore, limit: int, job_id: str | None = None) -> LastRuns:
    """How the last runs ended.

    Args:
        store: the jobstore.
        limit: the largest number of runs.
        job_id: only runs of this job. Defaults to None: of all jobs.
    """
    now_ms = store.store.now_ms()
    records: list[RunRecord] = []
    pages, greatest_ms = _PAGES, MAX_DUE_MS
    for back_ms in (*_WINDOWS_MS, now_ms):
        least_ms, cursor = max(0, now_ms - back_ms), None
        while pages:
            pages -= 1
            page = store.store.list_items(
                "dead",
                topic=HISTORY,
                least_ms=least_ms,
                greatest_ms=greatest_ms,
                cursor=cursor,
                limit=_ITEMS_A_PAGE,
            )
            for found in page.found:
                records += [one for one in load_records(found.body) if job_id in (None, one.job_id)]
            cursor = page.cursor
            if cursor is None:
                break
        if len(records) >= limit or not pages:
            break
        greatest_ms = least_ms - 1
    return LastRuns(newest(records, limit), bool(pages))


def _longest_lease_ms(workers: Sequence[dict[str, Any]]) -> int:
    leases: list[int] = [worker["lease_ms"] for worker in workers if isinstance(worker.get("lease_ms"), int)]
    return max([_SHORTEST_LEASE_MS, *leases])
