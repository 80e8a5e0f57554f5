"""A scheduler pauses a jobstore that fails. Its loop continues, the other stores work, and no job is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED, EVENT_JOB_REMOVED
from apscheduler.jobstores.base import JobLookupError
from apscheduler.jobstores.memory import MemoryJobStore

Make = Callable[..., Any]


def past(seconds: float = 1.0) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


@pytest.fixture
def make_store() -> type[MemoryJobStore]:
    """Overrides the fixture of `conftest.py`. Most tests here pass a failing store of their own instead."""
    return MemoryJobStore


class FailingStore(MemoryJobStore):  # type: ignore[misc]  # APScheduler is untyped
    """A jobstore in memory. After `arm`, the first `times` calls of the given method raise."""

    def __init__(self, method: str, times: int, error: type[Exception] = ConnectionError) -> None:
        super().__init__()
        self.left = times
        self.calls = 0
        original = getattr(self, method)

        def failing(*args: Any) -> Any:
            self.calls += 1
            if self.left > 0:
                self.left -= 1
                raise error("the server is away")
            return original(*args)

        self.arm = lambda: setattr(self, method, failing)


METHODS = ["get_due_jobs", "update_job", "remove_job", "get_next_run_time"]


@pytest.mark.parametrize("method", METHODS)
def test_the_loop_outlives_any_call_that_fails(
    make: Make, witness_of: Make, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One of the store's methods raises three times. The scheduler's loop continues and runs all jobs. Stock
    APScheduler catches errors of `get_due_jobs` only; after other errors its thread ends, and `running` stays True."""
    store = FailingStore(method, 3)
    scheduler = make(paused=True, jobstores={"default": store}, jobstore_retry_interval=0.01)
    witness = witness_of(scheduler)
    scheduler.add_job(lambda: None, "date", run_date=past(), id="once")
    scheduler.add_job(lambda: None, "interval", seconds=3600, next_run_time=past(), id="often")
    store.arm()
    with caplog.at_level(logging.WARNING, "apscheduler.scheduler"):
        scheduler.resume()
        witness.wait(EVENT_JOB_EXECUTED, 2)
        witness.wait(EVENT_JOB_REMOVED, 1)
        scheduler.add_job(lambda: None, "date", run_date=past(), id="afterwards")
        witness.wait(EVENT_JOB_EXECUTED, 3)
    assert sorted(witness.ids(EVENT_JOB_EXECUTED)) == ["afterwards", "often", "once"]
    assert scheduler.running
    assert "the server is away" in caplog.text


def test_a_store_that_is_away_for_good_stops_no_other(make: Make, witness_of: Make) -> None:
    """One of two stores always fails. The scheduler asks it once in each retry interval, and runs the jobs of the other
    store."""
    broken = FailingStore("get_due_jobs", 1 << 30)
    broken.arm()
    scheduler = make(jobstores={"broken": broken, "default": MemoryJobStore()}, jobstore_retry_interval=3600)
    witness = witness_of(scheduler)
    for number in range(20):
        scheduler.add_job(lambda: None, "date", run_date=past(), id=str(number))
        witness.wait(EVENT_JOB_EXECUTED, number + 1)
    assert broken.calls == 1


def test_a_job_that_somebody_removed_from_the_store_does_not_run(make: Make, witness_of: Make) -> None:
    """Another scheduler has removed a due job from the store. A stock scheduler's thread then ends with a lookup error.
    Our scheduler skips the job."""
    store = FailingStore("remove_job", 1, JobLookupError)
    scheduler = make(paused=True, jobstores={"default": store})
    witness = witness_of(scheduler)
    scheduler.add_job(lambda: None, "date", run_date=past(), id="gone")
    scheduler.add_job(lambda: None, "date", run_date=past(), id="there")
    store.arm()
    scheduler.resume()
    witness.wait(EVENT_JOB_EXECUTED)
    assert witness.ids(EVENT_JOB_EXECUTED)[0] == "there"
    assert scheduler.running


def test_a_head_that_is_due_and_never_given_makes_no_busy_loop(make: Make, witness_of: Make) -> None:
    """The store reports a due job and never returns it, as APScheduler's own Redis store does for dates before 1970.
    The scheduler makes only a few passes."""
    store = MemoryJobStore()
    scheduler = make(paused=True, jobstores={"default": store})
    witness = witness_of(scheduler)
    passes: list[int] = []

    def nothing_due(_: datetime) -> list[Any]:
        passes.append(1)
        return []

    original, store.get_due_jobs = store.get_due_jobs, nothing_due
    scheduler.add_job(lambda: None, "date", run_date=past(), id="stuck")
    scheduler.resume()
    scheduler.add_job(lambda: None, "date", run_date=datetime.now(UTC) + timedelta(seconds=0.3), jobstore="default")
    waited = scheduler._left.wait(0.3)  # in this time stock APScheduler makes thousands of passes
    assert not waited
    assert len(passes) < 50
    store.get_due_jobs = original
    scheduler.wakeup()
    witness.wait(EVENT_JOB_EXECUTED, 2)
