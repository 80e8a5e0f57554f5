"""The event that a run has ended comes before the event that its job is removed. A refused run is not also reported as
missed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.events import (
    EVENT_JOB_ADDED,
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_REMOVED,
)
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.triggers.interval import IntervalTrigger
from wheel_sched_apscheduler import WheelBackgroundScheduler, WheelJobStore

Make = Callable[..., Any]
ENDS = EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED


def past(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, DebugExecutor])
@pytest.mark.parametrize(
    ("func", "options", "end"),
    [
        (lambda: None, {}, EVENT_JOB_EXECUTED),
        (lambda: 1 / 0, {}, EVENT_JOB_ERROR),
        (lambda: None, {"misfire_grace_time": 2}, EVENT_JOB_MISSED),
    ],
    ids=["executed", "error", "missed"],
)
def test_a_job_is_removed_after_its_last_run_has_ended(
    make: Make, witness_of: Make, executor: Any, func: Any, options: dict[str, Any], end: int
) -> None:
    """The event that a job's last run has ended comes before the event of the job's removal, as APScheduler's own tests
    expect."""
    scheduler = make(executors={"default": executor()})
    witness = witness_of(scheduler, ENDS | EVENT_JOB_REMOVED)
    scheduler.add_job(func, "date", run_date=past(10), id="one", **options)
    witness.wait(EVENT_JOB_REMOVED)
    assert [event.code for event in witness.events] == [end, EVENT_JOB_REMOVED]


def test_a_job_that_adds_itself_again_is_not_the_one_that_is_removed(make: Make, witness_of: Make) -> None:
    """A one-shot job adds a new job under its own id while it runs. The old job's removal is reported first, then the
    new job."""
    scheduler = make()
    witness = witness_of(scheduler, ENDS | EVENT_JOB_REMOVED | EVENT_JOB_ADDED)

    def again() -> None:
        scheduler.add_job(lambda: None, "date", run_date=past(-600), id="one")

    scheduler.add_job(again, "date", run_date=past(0), id="one")
    witness.wait(EVENT_JOB_EXECUTED)
    scheduler.shutdown()
    assert [event.code for event in witness.events if event.code != EVENT_JOB_EXECUTED][:3] == [
        EVENT_JOB_ADDED,
        EVENT_JOB_REMOVED,
        EVENT_JOB_ADDED,
    ]


@pytest.mark.parametrize("all_late", [False, True])
@pytest.mark.parametrize("executor", [ThreadPoolExecutor, DebugExecutor])
def test_runs_that_are_refused_are_not_missed_besides(
    make: Make, witness_of: Make, executor: Any, all_late: bool
) -> None:
    """A run that is refused and also too late is not reported as missed. Stock APScheduler does the same: it checks
    `max_instances` first."""
    scheduler = make(executors={"default": executor()}, paused=True)
    witness = witness_of(scheduler, ENDS | EVENT_JOB_MAX_INSTANCES)
    scheduler._executors["default"]._instances["slow"] = 1  # as if it ran
    trigger = IntervalTrigger(seconds=10 if all_late else 2, start_date=past(9), timezone=UTC)
    scheduler.add_job(time.sleep, trigger, [0], id="slow", coalesce=False, misfire_grace_time=4, next_run_time=past(9))
    scheduler.resume()
    (refused,) = witness.wait(EVENT_JOB_MAX_INSTANCES)[:1]
    assert len(refused.scheduled_run_times) == (1 if all_late else 5)
    assert witness.of(EVENT_JOB_MISSED) == []
    scheduler._executors["default"]._instances.clear()


@pytest.mark.parametrize(("misfire", "end"), [("lenient", EVENT_JOB_EXECUTED), ("claim", EVENT_JOB_MISSED)])
def test_how_strict_a_store_is_about_a_grace_of_one_second_holds_here_too(
    witness_of: Make, misfire: Any, end: int
) -> None:
    """The user may not have chosen a grace time of one second: it is APScheduler's default. `misfire="claim"` applies
    it, and `misfire="lenient"` ignores it."""
    scheduler = WheelBackgroundScheduler(timezone=UTC, jobstores={"default": WheelJobStore(misfire=misfire)})
    witness = witness_of(scheduler, ENDS)
    scheduler.start()
    scheduler.add_job(time.sleep, "date", [0], run_date=past(10), id="late", misfire_grace_time=1)
    assert witness.wait(ENDS)[0].code == end
    scheduler.shutdown()
