"""Due jobs run once, in order, with the same events as in stock APScheduler. No error ends the scheduler's loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from apscheduler.events import (
    EVENT_JOB_ADDED,
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_REMOVED,
    EVENT_JOB_SUBMITTED,
)
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import ProcessPoolExecutor, ThreadPoolExecutor
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError

Make = Callable[..., Any]


def past(seconds: float = 1.0) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def soon(seconds: float = 0.02) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_a_one_shot_runs_on_time_and_leaves_the_store(make: Make, witness_of: Make) -> None:
    """The job runs once, not early, and is then no longer in the store."""
    scheduler = make()
    witness = witness_of(scheduler)
    ran: list[datetime] = []
    due = soon(0.05)
    scheduler.add_job(lambda: ran.append(datetime.now(UTC)), "date", run_date=due, id="one")
    witness.wait(EVENT_JOB_EXECUTED)
    witness.wait(EVENT_JOB_REMOVED)
    assert len(ran) == 1
    assert ran[0] >= due
    assert scheduler.get_jobs() == []


def test_an_interval_keeps_its_beat(make: Make, witness_of: Make) -> None:
    """Run times are multiples of the interval apart, even if the loop is late."""
    scheduler = make()
    witness = witness_of(scheduler)
    scheduler.add_job(lambda: None, "interval", seconds=0.02, id="beat")
    times = [event.scheduled_run_time for event in witness.wait(EVENT_JOB_EXECUTED, 5)][:5]
    assert {round((later - earlier).total_seconds() * 1000) % 20 for earlier, later in pairwise(times)} == {0}
    assert len(set(times)) == 5


def test_events_come_in_causal_order(make: Make, witness_of: Make) -> None:
    """The events of a job arrive in the order added, submitted, executed. Stock APScheduler can send "submitted" after
    the end of a fast job."""
    scheduler = make()
    witness = witness_of(scheduler, EVENT_JOB_ADDED | EVENT_JOB_SUBMITTED | EVENT_JOB_EXECUTED)
    for number in range(50):
        scheduler.add_job(lambda: None, "date", run_date=soon(), id=str(number))
    witness.wait(EVENT_JOB_EXECUTED, 50)
    for number in range(50):
        codes = [event.code for event in witness.events if event.job_id == str(number)]
        assert codes == [EVENT_JOB_ADDED, EVENT_JOB_SUBMITTED, EVENT_JOB_EXECUTED]


def test_an_exception_of_a_job_is_an_event(make: Make, witness_of: Make) -> None:
    """A job raises. The event has the exception, its traceback and the run time, as in stock APScheduler."""
    scheduler = make()
    witness = witness_of(scheduler)
    due = soon()

    def fail() -> None:
        raise ValueError("broken")

    scheduler.add_job(fail, "date", run_date=due, id="one")
    (event,) = witness.wait(EVENT_JOB_ERROR)
    assert isinstance(event.exception, ValueError)
    assert "broken" in event.traceback or "fail" in event.traceback
    assert event.scheduled_run_time == due


def test_the_return_value_is_in_the_event(make: Make, witness_of: Make) -> None:
    """The event has the return value in `retval`, as in stock APScheduler."""
    scheduler = make()
    witness = witness_of(scheduler)
    scheduler.add_job(lambda: 42, "date", run_date=soon())
    assert witness.wait(EVENT_JOB_EXECUTED)[0].retval == 42


@pytest.mark.parametrize("code", [EVENT_JOB_ADDED, EVENT_JOB_SUBMITTED, EVENT_JOB_EXECUTED, EVENT_JOB_REMOVED])
def test_a_listener_that_raises_ends_nothing(make: Make, witness_of: Make, code: int) -> None:
    """A listener raises at one kind of event, whichever it is. The next job still runs."""
    scheduler = make()

    def broken(_: Any) -> None:
        raise RuntimeError("a broken listener")

    scheduler.add_listener(broken, code)
    witness = witness_of(scheduler, EVENT_JOB_EXECUTED)
    for count in (1, 2):
        scheduler.add_job(lambda: None, "date", run_date=soon())
        witness.wait(EVENT_JOB_EXECUTED, count)
    assert scheduler.running


def test_max_instances_is_kept_and_reported(make: Make, witness_of: Make) -> None:
    """If a job still runs at its next run time, that run is refused with an event. The job stays scheduled."""
    scheduler = make()
    witness = witness_of(scheduler)
    gate = threading.Event()
    scheduler.add_job(gate.wait, "interval", seconds=0.02, id="slow", max_instances=1)
    witness.wait(EVENT_JOB_MAX_INSTANCES, 2)
    assert len(witness.of(EVENT_JOB_SUBMITTED)) == 1
    gate.set()
    witness.wait(EVENT_JOB_EXECUTED, 3)


def test_two_instances_run_at_once_when_two_may(make: Make, witness_of: Make) -> None:
    """With `max_instances=2`, two instances run at once, never three."""
    scheduler = make()
    witness = witness_of(scheduler)
    gate = threading.Event()
    scheduler.add_job(gate.wait, "interval", seconds=0.02, max_instances=2)
    witness.wait(EVENT_JOB_MAX_INSTANCES)
    assert len(witness.of(EVENT_JOB_SUBMITTED)) == 2
    gate.set()
    witness.wait(EVENT_JOB_EXECUTED, 2)


def test_a_slow_job_holds_up_nobody_of_its_batch(make: Make, witness_of: Make) -> None:
    """One job of a batch blocks one of two worker threads. The other worker thread runs all the other jobs."""
    scheduler = make(paused=True, executors={"default": ThreadPoolExecutor(2)})
    witness = witness_of(scheduler)
    gate = threading.Event()
    scheduler.add_job(gate.wait, "date", run_date=past(), id="0-slow")
    for number in range(100):
        scheduler.add_job(lambda: None, "date", run_date=past(), id=f"1-{number}")
    scheduler.resume()
    witness.wait(EVENT_JOB_EXECUTED, 100)
    assert "0-slow" not in witness.ids(EVENT_JOB_EXECUTED)
    gate.set()
    witness.wait(EVENT_JOB_EXECUTED, 101)


def test_slow_jobs_after_a_row_of_quick_ones_hold_up_nobody(make: Make, witness_of: Make) -> None:
    """Quick jobs need few worker threads. If slow jobs follow, more threads start, also between two passes of the
    scheduler."""
    scheduler = make(paused=True, executors={"default": ThreadPoolExecutor(6)})
    witness = witness_of(scheduler, EVENT_JOB_EXECUTED)
    gate = threading.Event()
    order = [*(["quick"] * 300), *(["slow"] * 5), *(["quick"] * 300)]
    try:
        for number, kind in enumerate(order):
            job = gate.wait if kind == "slow" else int
            scheduler.add_job(job, "date", run_date=past(), id=f"{number:03}-{kind}")
        scheduler.resume()
        witness.wait(EVENT_JOB_EXECUTED, 600)
        assert not any(job_id.endswith("slow") for job_id in witness.ids(EVENT_JOB_EXECUTED))
    finally:
        gate.set()
    witness.wait(EVENT_JOB_EXECUTED, 605)


def test_nothing_is_dropped_for_being_late_by_default(make: Make, witness_of: Make) -> None:
    """Jobs that are an hour late run. Stock APScheduler drops a job that is more than a second late, because that is
    its default grace time."""
    scheduler = make()
    witness = witness_of(scheduler)
    for number in range(10):
        scheduler.add_job(lambda: None, "date", run_date=past(3600), id=str(number))
    assert len(witness.wait(EVENT_JOB_EXECUTED, 10)) == 10
    assert witness.of(EVENT_JOB_MISSED) == []


@pytest.mark.slow  # a grace is whole seconds
def test_a_grace_counts_from_the_claim_not_from_the_worker(make: Make, witness_of: Make) -> None:
    """A job that is claimed in time runs, however long it waits for the only worker."""
    scheduler = make(executors={"default": ThreadPoolExecutor(1)})
    witness = witness_of(scheduler)
    gate = threading.Event()
    scheduler.add_job(gate.wait, "date", run_date=past(0), id="first")
    witness.wait(EVENT_JOB_SUBMITTED)
    scheduler.add_job(lambda: None, "date", run_date=soon(), id="second", misfire_grace_time=1)
    witness.wait(EVENT_JOB_SUBMITTED, 2)
    time.sleep(1.2)  # longer than the grace time, which is what is tested
    gate.set()
    assert witness.wait(EVENT_JOB_EXECUTED, 2)[1].job_id == "second"


def test_every_run_that_came_too_late_is_reported(make: Make, witness_of: Make) -> None:
    """Three of five run times are outside the grace time: three missed events, two runs, and the job stays
    scheduled."""
    scheduler = make(paused=True)
    witness = witness_of(scheduler)
    start = datetime.now(UTC) - timedelta(seconds=45)
    scheduler.add_job(
        lambda: None, "interval", seconds=10, next_run_time=start, coalesce=False, misfire_grace_time=20, id="late"
    )
    scheduler.resume()
    assert len(witness.wait(EVENT_JOB_EXECUTED, 2)) == 2
    missed = [event.scheduled_run_time for event in witness.of(EVENT_JOB_MISSED)]
    assert missed == [start + timedelta(seconds=10 * step) for step in range(3)]
    following = scheduler.get_job("late").next_run_time
    assert following == start + timedelta(seconds=50)


def test_a_coalesced_backlog_is_one_run(make: Make, witness_of: Make) -> None:
    """After a week of missed seconds the job runs once, for the last second. Finding that second takes little time."""
    scheduler = make(paused=True)
    witness = witness_of(scheduler)
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(days=7)
    scheduler.add_job(lambda: None, "interval", seconds=1, next_run_time=start, id="week")
    scheduler.resume()
    first = witness.wait(EVENT_JOB_EXECUTED)[0].scheduled_run_time
    assert timedelta(0) <= datetime.now(UTC) - first < timedelta(seconds=60)


def test_a_backlog_that_does_not_coalesce_runs_each_time(make: Make, witness_of: Make) -> None:
    """One submission has every missed run time, earliest first, as in stock APScheduler."""
    scheduler = make(paused=True)
    witness = witness_of(scheduler)
    start = datetime.now(UTC) - timedelta(seconds=35)
    scheduler.add_job(lambda: None, "interval", seconds=10, next_run_time=start, coalesce=False)
    scheduler.resume()
    times = [event.scheduled_run_time for event in witness.wait(EVENT_JOB_EXECUTED, 4)][:4]
    assert times == [start + timedelta(seconds=10 * step) for step in range(4)]
    assert len(witness.of(EVENT_JOB_SUBMITTED)[0].scheduled_run_times) == 4


def test_an_unknown_executor_loses_no_job(make: Make, witness_of: Make) -> None:
    """A due job names an executor that does not exist. Stock APScheduler deletes the job. Here it runs when the
    executor exists and the job is resumed."""
    scheduler = make()
    witness = witness_of(scheduler)
    scheduler.add_job(lambda: None, "date", run_date=past(), id="orphan", executor="gpu")
    scheduler.add_job(lambda: None, "date", run_date=past(), id="other")
    witness.wait(EVENT_JOB_EXECUTED)
    assert scheduler.get_job("orphan") is not None
    scheduler.add_executor(ThreadPoolExecutor(1), "gpu")
    scheduler.resume_job("orphan")
    assert witness.wait(EVENT_JOB_EXECUTED, 2)[1].job_id == "orphan"


def test_each_job_runs_in_its_own_executor(make: Make, witness_of: Make) -> None:
    """There are two pools, and an executor in the scheduler's thread. The thread's name shows which executor ran the
    job."""
    executors = {
        "default": ThreadPoolExecutor(2, {"thread_name_prefix": "first"}),
        "other": ThreadPoolExecutor(2, {"thread_name_prefix": "second"}),
        "debug": DebugExecutor(),
    }
    scheduler = make(executors=executors)
    witness = witness_of(scheduler)
    for executor in executors:
        scheduler.add_job(
            lambda: threading.current_thread().name, "date", run_date=soon(), executor=executor, id=executor
        )
    names = {event.job_id: event.retval for event in witness.wait(EVENT_JOB_EXECUTED, 3)}
    assert names["default"].startswith("first")
    assert names["other"].startswith("second")
    assert names["debug"] == "APScheduler"


@pytest.mark.slow  # worker processes are spawned
def test_a_pool_of_processes_works_and_its_breaking_is_reported(make: Make, witness_of: Make) -> None:
    """A job runs in another process. If a job kills its worker process, an event reports it, and a new pool starts."""
    scheduler = make(executors={"default": ProcessPoolExecutor(1)})
    witness = witness_of(scheduler)
    scheduler.add_job("os:getpid", "date", run_date=soon(), id="pid")
    (event,) = witness.wait(EVENT_JOB_EXECUTED)
    assert isinstance(event.retval, int)
    scheduler.add_job("os:_exit", "date", args=[9], run_date=soon(), id="dies")
    assert witness.wait(EVENT_JOB_ERROR)[0].job_id == "dies"
    scheduler.add_job("os:getpid", "date", run_date=soon(), id="again")
    assert witness.wait(EVENT_JOB_EXECUTED, 2)[1].job_id == "again"


@pytest.mark.slow  # worker processes are spawned
def test_arguments_that_cannot_reach_a_process_are_reported(make: Make, witness_of: Make) -> None:
    """A job in a process pool has an argument that cannot be pickled. An event reports the error. Stock APScheduler
    only logs the error and removes the job."""
    scheduler = make(executors={"default": ProcessPoolExecutor(1)})
    witness = witness_of(scheduler)
    scheduler.add_job("builtins:repr", "date", args=[threading.Lock()], run_date=soon(), id="locked")
    assert witness.wait(EVENT_JOB_ERROR)[0].job_id == "locked"


def test_a_job_adds_changes_and_removes_jobs(make: Make, witness_of: Make) -> None:
    """A running job adds, changes and removes other jobs through its scheduler."""
    scheduler = make()
    witness = witness_of(scheduler)

    def chain() -> None:
        scheduler.add_job(lambda: None, "date", run_date=soon(), id="child")
        scheduler.modify_job("chain", name="renamed")
        scheduler.remove_job("doomed")

    scheduler.add_job(lambda: None, "interval", hours=1, id="doomed")
    scheduler.add_job(chain, "date", run_date=soon(), id="once")
    job = scheduler.add_job(lambda: None, "interval", hours=1, id="chain")
    witness.wait(EVENT_JOB_EXECUTED, 2)
    assert set(witness.ids(EVENT_JOB_EXECUTED)) == {"once", "child"}
    assert scheduler.get_job("doomed") is None
    assert scheduler.get_job(job.id).name == "renamed"


def test_a_job_that_removes_itself_stays_removed(make: Make, witness_of: Make) -> None:
    """An interval job that removes itself while it runs does not run again."""
    scheduler = make()
    witness = witness_of(scheduler)
    ran: list[int] = []

    def last() -> None:
        ran.append(1)
        scheduler.remove_job("self")

    scheduler.add_job(last, "interval", seconds=0.02, id="self")
    witness.wait(EVENT_JOB_EXECUTED)
    scheduler.add_job(lambda: None, "date", run_date=soon(0.1), id="after")
    witness.wait(EVENT_JOB_EXECUTED, 2)
    assert ran == [1]
    assert scheduler.get_job("self") is None


def test_a_job_that_is_removed_before_its_time_does_not_run(make: Make, witness_of: Make) -> None:
    """The scheduler submits 100 due jobs in batches of ten. A due job that is removed before its batch does not run."""
    scheduler = make(paused=True, batch=10)
    witness = witness_of(scheduler)
    for number in range(100):
        scheduler.add_job(lambda: None, "date", run_date=past(), id=f"{number:03}")
    removed = threading.Event()

    def remove(event: Any) -> None:
        if event.job_id == "000" and not removed.is_set():
            for number in range(50, 100):
                scheduler.remove_job(f"{number:03}")
            removed.set()

    scheduler.add_listener(remove, EVENT_JOB_SUBMITTED)
    scheduler.resume()
    witness.wait(EVENT_JOB_EXECUTED, 50)
    witness.wait(EVENT_JOB_REMOVED, 100)
    assert sorted(witness.ids(EVENT_JOB_EXECUTED)) == [f"{number:03}" for number in range(50)]


def test_pausing_a_job_and_resuming_it(make: Make, witness_of: Make) -> None:
    """A paused job does not run. A resumed job does."""
    scheduler = make()
    witness = witness_of(scheduler)
    scheduler.add_job(lambda: None, "interval", seconds=0.02, id="one", next_run_time=None)
    scheduler.add_job(lambda: None, "date", run_date=soon(0.1), id="later")
    witness.wait(EVENT_JOB_EXECUTED)
    assert set(witness.ids(EVENT_JOB_EXECUTED)) == {"later"}
    scheduler.resume_job("one")
    witness.wait(EVENT_JOB_EXECUTED, 3)


def test_ids_that_clash_and_ids_that_are_unknown(make: Make, witness_of: Make) -> None:
    """Adding a job with an existing id, or using an unknown id, raises the same error as in stock APScheduler. The
    existing job does not change."""
    scheduler = make()
    scheduler.add_job(lambda: None, "interval", hours=1, id="one", name="first")
    with pytest.raises(ConflictingIdError):
        scheduler.add_job(lambda: None, "interval", hours=1, id="one", name="second")
    assert scheduler.get_job("one").name == "first"
    scheduler.add_job(lambda: None, "interval", hours=1, id="one", name="second", replace_existing=True)
    assert scheduler.get_job("one").name == "second"
    with pytest.raises(JobLookupError):
        scheduler.remove_job("two")
    with pytest.raises(JobLookupError):
        scheduler.modify_job("two", name="x")


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, DebugExecutor])
def test_many_executions_leave_no_trace_in_the_executor(make: Make, witness_of: Make, executor: Any) -> None:
    """The executor keeps no count for a job that does not run. Stock APScheduler keeps a count of zero for each job of
    a debug executor."""
    scheduler = make(paused=True, executors={"default": executor()})
    witness = witness_of(scheduler, EVENT_JOB_EXECUTED)
    for _ in range(500):
        scheduler.add_job(lambda: None, "date", run_date=past())
    scheduler.resume()
    witness.wait(EVENT_JOB_EXECUTED, 500)
    assert scheduler.drain(30)
    assert dict(scheduler._executors["default"]._instances) == {}
    assert scheduler.get_jobs() == []
