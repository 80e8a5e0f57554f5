"""The scheduler's loop sleeps until a job is due. A new job wakes the loop if it is due before all others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import EVENT_JOB_EXECUTED
from hypothesis import given
from hypothesis import strategies as st
from wheel_sched_apscheduler.schedulers.alarm import Alarm

Make = Callable[..., Any]
PATIENCE_S = 30.0


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@contextmanager
def counted_passes(scheduler: Any) -> Iterator[list[int]]:
    """Yields a list that gets one entry for each pass of the scheduler."""
    passes: list[int] = []
    process = scheduler._process_jobs

    def count() -> Any:
        passes.append(1)
        return process()

    scheduler._process_jobs = count
    yield passes
    del scheduler._process_jobs


def asleep(scheduler: Any) -> bool:
    with scheduler._alarm._changed:
        return bool(scheduler._alarm._until > time.time())


def wait_asleep(scheduler: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not asleep(scheduler):
        assert time.monotonic() < until
        time.sleep(0.001)  # until the loop sleeps; it sends no signal


def test_an_add_behind_the_head_makes_no_pass(make: Make) -> None:
    """A job that is due after the earliest job causes no pass. A stock scheduler makes a pass for each new job."""
    scheduler = make()
    scheduler.add_job(lambda: None, "date", run_date=soon(600), id="head")
    wait_asleep(scheduler)
    with counted_passes(scheduler) as passes:
        for number in range(100):
            scheduler.add_job(lambda: None, "date", run_date=soon(700 + number), id=str(number))
            scheduler.modify_job(str(number), name="changed")
            scheduler.pause_job(str(number))
        assert passes == []


def test_an_add_before_the_head_is_not_overslept(make: Make, witness_of: Make) -> None:
    """A job that is due before the earliest job wakes the scheduler. So does a job that is moved to an earlier time."""
    scheduler = make()
    witness = witness_of(scheduler)
    scheduler.add_job(lambda: None, "date", run_date=soon(600), id="head")
    wait_asleep(scheduler)
    scheduler.add_job(lambda: None, "date", run_date=soon(0.02), id="earlier")
    witness.wait(EVENT_JOB_EXECUTED)
    wait_asleep(scheduler)
    scheduler.modify_job("head", next_run_time=soon(0.02))
    witness.wait(EVENT_JOB_EXECUTED, 2)
    assert witness.ids(EVENT_JOB_EXECUTED) == ["earlier", "head"]


def test_a_store_added_later_is_visited(make: Make, make_store: Make, witness_of: Make) -> None:
    """The scheduler runs the jobs of a store that is added later, and does not ask a store that was removed."""
    scheduler = make()
    witness = witness_of(scheduler)
    wait_asleep(scheduler)
    scheduler.add_jobstore(make_store(), "second")
    scheduler.add_job(lambda: None, "date", run_date=soon(0.02), jobstore="second", id="there")
    assert witness.wait(EVENT_JOB_EXECUTED)[0].jobstore == "second"
    scheduler.remove_jobstore("second")
    scheduler.add_job(lambda: None, "date", run_date=soon(0.02), id="here")
    witness.wait(EVENT_JOB_EXECUTED, 2)


def test_adds_from_many_threads_all_run(make: Make, witness_of: Make) -> None:
    """Eight threads add jobs at once, and all jobs run. No wake-up is lost between a pass and the next sleep."""
    scheduler = make()
    witness = witness_of(scheduler, EVENT_JOB_EXECUTED)

    def add(adapter: int) -> None:
        for number in range(50):
            scheduler.add_job(lambda: None, "date", run_date=soon(0.001 * (number % 7)), id=f"{adapter}-{number}")

    threads = [threading.Thread(target=add, args=(adapter,)) for adapter in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    witness.wait(EVENT_JOB_EXECUTED, 400)
    assert len(set(witness.ids(EVENT_JOB_EXECUTED))) == 400


def test_an_alarm_never_ends_a_sleep_early() -> None:
    """Each of twenty short sleeps lasts until its end time by the same clock."""
    alarm = Alarm()
    for step in range(20):
        until = time.time() + step / 4000
        alarm.sleep(until)
        assert time.time() >= until


def test_a_ring_before_the_sleep_counts_for_it() -> None:
    """After `ring`, the next `sleep` returns at once. After `ring_by`, the next `sleep` returns at the given time. Each
    of these calls ends only one sleep."""
    alarm = Alarm()
    alarm.ring()
    alarm.sleep(float("inf"))
    alarm.ring_by(time.time() + 0.01)
    alarm.sleep(float("inf"))
    until = time.time() + 0.01
    alarm.sleep(until)
    assert time.time() >= until


@given(st.lists(st.floats(0, 100), max_size=6), st.floats(0, 100))
def test_the_earliest_moment_anybody_named_ends_the_sleep(asked: list[float], until: float) -> None:
    """A sleep ends at the earliest requested time, in whatever order the requests are made. The test's clock always
    shows this time."""
    moments: list[float] = []
    alarm = Alarm(now=lambda: min([until, *asked]) if not moments else moments[0])
    for moment in asked:
        alarm.ring_by(moment)
    alarm.sleep(until)  # returns because that clock shows the earliest of them
    assert alarm._asked == float("inf")
