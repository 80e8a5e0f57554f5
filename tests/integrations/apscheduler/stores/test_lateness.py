"""Lateness is measured once, at the claim. A run that was claimed in time stays in time."""

from __future__ import annotations

import logging
import pickle
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.executors.base import run_job
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler import WheelJobStore, current_occurrence
from wheel_sched_apscheduler.occurrence import Finish
from wheel_sched_apscheduler.run_times import missed_runs

if TYPE_CHECKING:
    from wheel_sched_apscheduler.occurrence import Occurrence

CLAIMED = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)  # long ago, as if the pool had been full
GRACE_S = 20
FIRST = CLAIMED - timedelta(seconds=30)

ran: list[datetime] = []


def note() -> None:
    """A job function that records its run time."""
    occurrence = current_occurrence()
    assert occurrence is not None
    ran.append(occurrence.run_time)


@pytest.fixture
def every_15_s(make_job: Any) -> Any:
    """Makes a job with run times 30, 15 and 0 seconds before the claim. Only the first is outside the grace time of 20
    seconds."""
    trigger = IntervalTrigger(seconds=15, start_date=FIRST, timezone="UTC")
    options = {"func": note, "trigger": trigger, "coalesce": False, "misfire_grace_time": GRACE_S}
    return lambda **more: make_job(FIRST, id="j", **options, **more)


def codes_of(job: Any, run_times: list[datetime]) -> list[int]:
    """Run a job as the executors of APScheduler do. Returns the codes of the events."""
    logging.getLogger("test").setLevel(logging.CRITICAL)
    return [event.code for event in run_job(job, "default", run_times, "test")]


@pytest.mark.parametrize("pool", ["threads", "processes"])
@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_a_run_time_that_was_in_time_at_the_claim_runs(kind: str, pool: str, open_fake: Any, every_15_s: Any) -> None:
    """The run time counts as in time, however long it waits for a worker or for earlier run times of its job."""
    ran.clear()
    store: Any = WheelJobStore() if kind == "memory" else open_fake()
    store.add_job(every_15_s())
    (job,) = store.get_due_jobs(CLAIMED)
    run_times = job._get_run_times(CLAIMED)
    if pool == "processes":
        job = pickle.loads(pickle.dumps(job))  # noqa: S301  # as a pool does
    assert codes_of(job, run_times) == [EVENT_JOB_MISSED, EVENT_JOB_EXECUTED, EVENT_JOB_EXECUTED]
    assert ran == run_times[1:]


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_a_store_that_works_as_stock_does_counts_until_the_run_begins(
    kind: str, open_fake: Any, every_15_s: Any
) -> None:
    """With `misfire="stock"` lateness counts until the run begins. All three run times are too late by then."""
    store: Any = WheelJobStore(misfire="stock") if kind == "memory" else open_fake(misfire="stock")
    store.add_job(every_15_s())
    (job,) = store.get_due_jobs(CLAIMED)
    assert codes_of(job, job._get_run_times(CLAIMED)) == [EVENT_JOB_MISSED] * 3


def claim(store: Any, now: datetime) -> Occurrence:
    """Claim one occurrence, and give it to an executor."""
    (occurrence,) = store.claim_batch(now).occurrences
    run_times, following = missed_runs(occurrence.job, now)
    occurrence.run_at(run_times)
    occurrence.plan(following)
    store.mark_submitted([occurrence])
    return occurrence


@pytest.mark.parametrize("late_s", [GRACE_S, GRACE_S + 1])
def test_a_run_that_is_put_back_is_as_late_as_at_its_claim(late_s: int, open_fake: Any, make_job: Any) -> None:
    """A run is claimed, put back, and claimed again much later. It counts as too late only if it was too late at its
    first claim."""
    store = open_fake()
    store.add_job(make_job(FIRST, id="j", misfire_grace_time=GRACE_S))
    occurrence = claim(store, FIRST + timedelta(seconds=late_s))
    store.release([occurrence])
    store.tracker.flush()
    (again,) = store.claim_batch(datetime.now(UTC)).occurrences
    assert again.scheduled == FIRST
    assert again.job.grace_s == (None if late_s == GRACE_S else GRACE_S)


@pytest.mark.parametrize("changed", [False, True], ids=["", "changed meanwhile"])
def test_a_lost_run_that_is_put_back_is_still_marked(open_fake: Any, make_job: Any, changed: bool) -> None:
    """The lease of a run ends. Another process claims the run and puts it back. `redelivered` is true until the run has
    ended, and false for the job's next run."""
    lost, other = open_fake(lease_s=0.1), open_fake()
    trigger = IntervalTrigger(seconds=60, start_date=FIRST, timezone="UTC")
    lost.add_job(make_job(FIRST, id="j", trigger=trigger))
    lost.set_tags("j", ["t"])
    claim(lost, FIRST)
    time.sleep(0.2)  # the lease ends
    occurrence = claim(other, FIRST)
    if changed:
        lost.set_tags("j", ["other"])
    other.release([occurrence])
    for _ in range(3):
        other.tracker.flush()
    again = claim(other, FIRST)
    assert (again.scheduled, again.redelivered) == (FIRST, True)
    other.finish(again, Finish.EXECUTED)
    other.tracker.flush()
    following = claim(other, FIRST + timedelta(seconds=60))
    assert (following.scheduled, following.redelivered) == (FIRST + timedelta(seconds=60), False)
    assert other.get_entry("j").tags == ("other" if changed else "t",)


def test_two_lost_runs_of_one_job_both_run_in_a_stock_scheduler(open_fake: Any, make_job: Any) -> None:
    """Two runs of a job lose their process. A stock scheduler claims both but can run only one in each pass. Neither
    counts as too late, because both were claimed in time before."""
    last = FIRST + timedelta(seconds=60)
    lost, other = open_fake(lease_s=0.1), open_fake()
    trigger = IntervalTrigger(seconds=60, start_date=FIRST, end_date=last, timezone="UTC")
    lost.add_job(make_job(FIRST, id="j", trigger=trigger, max_instances=2, misfire_grace_time=GRACE_S))
    claim(lost, FIRST).handle.since -= 1  # as if it had run for a second
    lost.tracker.flush()
    claim(lost, last)
    time.sleep(0.2)  # both leases end
    seen = {}
    for _ in range(2):
        (job,) = other.get_due_jobs(datetime.now(UTC))
        (run_time,) = job._get_run_times(datetime.now(UTC))
        seen[run_time] = job.misfire_grace_time
        other.remove_job("j") if job.trigger.get_next_fire_time(run_time, run_time) is None else other.update_job(job)
        other.get_next_run_time()
        other.tracker.flush()
    assert seen == {FIRST: None, last: None}
