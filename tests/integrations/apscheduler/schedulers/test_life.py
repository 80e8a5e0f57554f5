"""Starting, pausing, draining and shutting down a scheduler cause no deadlock. `running` is correct, and no thread
remains."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import fakeredis
import pytest
from apscheduler.events import (
    EVENT_JOB_EXECUTED,
    EVENT_JOB_SUBMITTED,
    EVENT_SCHEDULER_PAUSED,
    EVENT_SCHEDULER_RESUMED,
    EVENT_SCHEDULER_SHUTDOWN,
    EVENT_SCHEDULER_STARTED,
)
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers import SchedulerAlreadyRunningError, SchedulerNotRunningError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_STOPPED
from apscheduler.schedulers.blocking import BlockingScheduler
from wheel_sched_apscheduler import RedisWheelJobStore
from wheel_sched_apscheduler.schedulers import WheelBackgroundScheduler, WheelBlockingScheduler

Make = Callable[..., Any]
PATIENCE_S = 30.0


def soon(seconds: float = 0.02) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_they_are_what_they_replace() -> None:
    """Our schedulers are subclasses of APScheduler's, so `isinstance` checks accept them."""
    assert issubclass(WheelBackgroundScheduler, BackgroundScheduler)
    assert issubclass(WheelBlockingScheduler, BlockingScheduler)


def test_configuration_is_read_as_in_stock() -> None:
    """A scheduler reads a configuration whose keys have the prefix `apscheduler.` and whose values are text. A jobstore
    or an executor is named by its plugin alias."""
    scheduler = WheelBackgroundScheduler(
        {
            "apscheduler.jobstores.default": {"type": "memory"},
            "apscheduler.executors.default": {"type": "threadpool", "max_workers": "3"},
            "apscheduler.job_defaults.coalesce": "false",
            "apscheduler.job_defaults.misfire_grace_time": "5",
            "apscheduler.timezone": "UTC",
            "apscheduler.batch": "7",
        }
    )
    assert scheduler._job_defaults == {"misfire_grace_time": 5, "coalesce": False, "max_instances": 1}
    assert scheduler._batch == 7


def test_jobs_added_before_the_start_run_after_it(witness_of: Make) -> None:
    """The scheduler keeps a job that is added before its start, and runs it after the start, as in stock
    APScheduler."""
    scheduler = WheelBackgroundScheduler(timezone=UTC)
    witness = witness_of(scheduler)
    scheduler.add_job(lambda: None, "date", run_date=soon(0), id="early")
    scheduler.start()
    try:
        witness.wait(EVENT_JOB_EXECUTED)
    finally:
        scheduler.shutdown()
    states = EVENT_SCHEDULER_STARTED | EVENT_SCHEDULER_SHUTDOWN
    assert [event.code for event in witness.of(states)] == [EVENT_SCHEDULER_STARTED, EVENT_SCHEDULER_SHUTDOWN]


def test_what_is_not_allowed_in_a_state(make: Make) -> None:
    """A second start raises. Pause, resume and shutdown raise while the scheduler does not run."""
    scheduler = make()
    with pytest.raises(SchedulerAlreadyRunningError):
        scheduler.start()
    scheduler.shutdown()
    for call in (scheduler.shutdown, scheduler.pause, scheduler.resume, scheduler.drain):
        with pytest.raises(SchedulerNotRunningError):
            call()


def test_nothing_begins_while_paused(make: Make, witness_of: Make) -> None:
    """Due jobs do not begin while the scheduler is paused. All of them begin after `resume`."""
    scheduler = make(paused=True)
    witness = witness_of(scheduler)
    for number in range(10):
        scheduler.add_job(lambda: None, "date", run_date=soon(0), id=str(number))
    scheduler.wakeup()
    time.sleep(0.1)  # long enough for a job to begin, if the scheduler were not paused
    assert witness.of(EVENT_JOB_SUBMITTED) == []
    scheduler.resume()
    witness.wait(EVENT_JOB_EXECUTED, 10)
    scheduler.pause()
    assert len(witness.of(EVENT_SCHEDULER_PAUSED)) == len(witness.of(EVENT_SCHEDULER_RESUMED)) == 1


def test_shutdown_waits_for_jobs_that_use_the_scheduler(make: Make, witness_of: Make) -> None:
    """A running job calls the scheduler while `shutdown` waits for the job. Both end. In stock APScheduler they
    deadlock, because `shutdown` holds the scheduler's locks while it waits."""
    scheduler = make()
    witness = witness_of(scheduler)
    gate, begun = threading.Event(), threading.Event()
    seen: list[Any] = []

    def job() -> None:
        begun.set()
        assert gate.wait(PATIENCE_S)
        scheduler.add_job(lambda: None, "interval", hours=1, id="added meanwhile")
        seen.append(scheduler.get_job("added meanwhile"))
        seen.extend(scheduler.get_jobs())
        scheduler.remove_job("added meanwhile")

    scheduler.add_job(job, "date", run_date=soon())
    assert begun.wait(PATIENCE_S)
    ender = threading.Thread(target=scheduler.shutdown)
    ender.start()
    while not scheduler.closing:
        time.sleep(0.001)  # until the other thread has begun the shutdown; it sends no signal
    gate.set()
    ender.join(PATIENCE_S)
    assert not ender.is_alive()
    assert len(seen) == 2
    assert len(witness.of(EVENT_JOB_EXECUTED)) == 1
    assert not scheduler.running


def test_shutdown_runs_what_was_handed_over(make: Make, witness_of: Make) -> None:
    """With `wait=True`, `shutdown` also waits for submitted jobs that have not begun. These jobs still run, as in stock
    APScheduler."""
    scheduler = make(paused=True, executors={"default": ThreadPoolExecutor(1)})
    witness = witness_of(scheduler)
    gate = threading.Event()
    scheduler.add_job(gate.wait, "date", run_date=soon(-1), id="0")
    for number in range(1, 20):
        scheduler.add_job(lambda: None, "date", run_date=soon(-1), id=str(number))
    scheduler.resume()
    witness.wait(EVENT_JOB_SUBMITTED, 20)
    gate.set()
    scheduler.shutdown(wait=True)
    assert len(witness.of(EVENT_JOB_EXECUTED)) == 20


def test_shutdown_without_waiting_returns_while_a_job_runs(make: Make, witness_of: Make) -> None:
    """`shutdown(wait=False)` ends the scheduler's loop, and the job runs on."""
    scheduler = make()
    witness = witness_of(scheduler)
    gate = threading.Event()
    scheduler.add_job(gate.wait, "date", run_date=soon())
    witness.wait(EVENT_JOB_SUBMITTED)
    scheduler.shutdown(wait=False)
    assert not scheduler.running
    gate.set()
    witness.wait(EVENT_JOB_EXECUTED)


@pytest.mark.parametrize("wait", [True, False])
def test_a_job_may_shut_the_scheduler_down(make: Make, witness_of: Make, wait: bool) -> None:
    """`shutdown` cannot wait for the job that calls it. So it returns at once, and the shutdown completes when the job
    has ended."""
    scheduler = make()
    witness = witness_of(scheduler)
    scheduler.add_job(lambda: scheduler.shutdown(wait=wait), "date", run_date=soon())
    witness.wait(EVENT_SCHEDULER_SHUTDOWN)
    witness.wait(EVENT_JOB_EXECUTED)
    assert scheduler.state == STATE_STOPPED
    assert not scheduler.running


def test_a_listener_may_shut_the_scheduler_down(make: Make, witness_of: Make) -> None:
    """A listener calls `shutdown` in the scheduler's own thread, so `shutdown` cannot wait for that thread. The
    shutdown still completes."""
    scheduler = make()
    witness = witness_of(scheduler)
    scheduler.add_listener(lambda _: scheduler.shutdown(), EVENT_JOB_SUBMITTED)
    scheduler.add_job(lambda: None, "date", run_date=soon())
    witness.wait(EVENT_SCHEDULER_SHUTDOWN)
    assert len(witness.of(EVENT_JOB_EXECUTED)) == 1


def test_draining_waits_for_what_runs_and_begins_nothing(make: Make, witness_of: Make) -> None:
    """`drain` returns whether all jobs ended in time. Afterwards the scheduler is paused, and `resume` continues it."""
    scheduler = make()
    witness = witness_of(scheduler)
    gate = threading.Event()
    scheduler.add_job(gate.wait, "date", run_date=soon(), id="slow")
    witness.wait(EVENT_JOB_SUBMITTED)
    assert scheduler.drain(0.05) is False
    scheduler.add_job(lambda: None, "date", run_date=soon(0), id="next")
    gate.set()
    assert scheduler.drain(PATIENCE_S) is True
    assert witness.ids(EVENT_JOB_EXECUTED) == ["slow"]
    scheduler.resume()
    witness.wait(EVENT_JOB_EXECUTED, 2)


def test_draining_from_inside_a_job_is_refused(make: Make, witness_of: Make) -> None:
    """A job calls `drain`, which would wait for that job. So `drain` raises an error, and the scheduler keeps
    running."""
    scheduler = make()
    witness = witness_of(scheduler)
    errors: list[BaseException] = []

    def drain() -> None:
        with pytest.raises(RuntimeError, match="outside of jobs") as caught:
            scheduler.drain()
        errors.append(caught.value)

    scheduler.add_job(drain, "date", run_date=soon())
    witness.wait(EVENT_JOB_EXECUTED)
    assert len(errors) == 1
    assert witness.of(EVENT_SCHEDULER_PAUSED) == []


def test_a_blocking_scheduler_returns_when_a_job_ends_it(witness_of: Make) -> None:
    """`start` blocks the caller's thread until the job has shut the scheduler down."""
    scheduler = WheelBlockingScheduler(timezone=UTC)
    witness = witness_of(scheduler)
    alive: list[bool] = []

    def job() -> None:
        alive.append(scheduler.running)
        scheduler.shutdown()

    scheduler.add_job(job, "date", run_date=soon())
    scheduler.start()
    witness.wait(EVENT_SCHEDULER_SHUTDOWN)
    assert alive == [True]
    assert not scheduler.running


def test_an_interrupted_loop_is_not_running() -> None:
    """After Ctrl-C `running` is False; in stock APScheduler it stays True. `shutdown` still ends executors and
    stores."""
    scheduler = WheelBlockingScheduler(timezone=UTC)

    def interrupt() -> None:
        for _ in range(8):  # the loop may be awake again when the interrupt comes
            while scheduler._alarm._until < time.time():
                time.sleep(0.001)  # until the loop sleeps: APScheduler swallows an interrupt inside of a listener
            os.kill(os.getpid(), signal.SIGINT)
            if scheduler._left.wait(5):
                return

    scheduler.add_job(interrupt, "date", run_date=soon(), misfire_grace_time=None)
    scheduler.add_job(os.getpid, "interval", hours=1)
    with pytest.raises(KeyboardInterrupt):
        scheduler.start()
    assert not scheduler.running
    assert "dead" in repr(scheduler)
    scheduler.shutdown()
    assert scheduler.state == STATE_STOPPED


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_knows_that_its_scheduler_does_not_run(make: Make) -> None:
    """A fork does not copy threads, so `running` is False in the child. Servers that fork workers often meet this."""
    scheduler = make()
    child = os.fork()
    if child == 0:
        os._exit(7 if not scheduler.running else 8)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert scheduler.running


def test_starts_and_stops_by_many_threads_at_once(make_store: Make) -> None:
    """Ten threads call `shutdown` at the same time. One call succeeds and the others raise. No thread is left over."""
    before = threading.active_count()
    for _ in range(20):
        scheduler = WheelBackgroundScheduler(jobstores={"default": make_store()}, timezone=UTC)
        answers: list[str] = []
        together = threading.Barrier(10)

        def end(scheduler: Any = scheduler, answers: list[str] = answers, together: Any = together) -> None:
            together.wait()
            try:
                scheduler.shutdown()
            except SchedulerNotRunningError:
                answers.append("was ended")
            else:
                answers.append("ended")

        scheduler.start()
        scheduler.add_job(lambda: None, "date", run_date=soon(0))
        threads = [threading.Thread(target=end) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert answers.count("ended") == 1
        assert len(answers) == 10
    assert threading.active_count() <= before


def test_its_repr_shows_its_state(make: Make) -> None:
    """The repr shows whether the scheduler is stopped, paused or running."""
    scheduler = make(paused=True)
    assert "paused" in repr(scheduler)
    scheduler.resume()
    assert "running" in repr(scheduler)
    scheduler.shutdown()
    assert "stopped" in repr(scheduler)


def test_a_store_over_an_imitation_of_redis_shuts_down() -> None:
    """`shutdown` cannot interrupt a blocked read of fakeredis. The read ends by itself after a short time, and its
    thread ends."""
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="valkey")) as client:
        store = RedisWheelJobStore(client=client)
        scheduler = WheelBackgroundScheduler(jobstores={"default": store}, timezone=UTC)
        scheduler.start()
        (reading,) = [each for each in threading.enumerate() if each.name == "wheel-sched-listener"]
        scheduler.shutdown()
        assert not reading.is_alive()
