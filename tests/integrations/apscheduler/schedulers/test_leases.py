"""Our schedulers over a store with leases: a run that is put back, refused or interrupted is run later.
A job can read its occurrence.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_SUBMITTED,
    EVENT_SCHEDULER_SHUTDOWN,
)
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.base import STATE_STOPPED
from wheel_sched_apscheduler import (
    RedisWheelJobStore,
    WheelAsyncIOScheduler,
    WheelBackgroundScheduler,
    WheelJobStore,
    current_occurrence,
)

from tests.servers.valkey import temporary_server

Make = Callable[..., Any]
PATIENCE_S = 30.0
# every process can import it, as it must for the function of a durable job
FUNCTIONS = ["time:time", "time:sleep", "time:perf_counter", "asyncio", "wheel_sched_apscheduler"]


def past(seconds: float = 1.0) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def soon(seconds: float = 0.02) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"waited in vain until {what}"
        time.sleep(0.005)  # the store's own threads make it true, without a signal


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
def open_store(request: pytest.FixtureRequest) -> Callable[..., RedisWheelJobStore]:
    """Opens stores over one server and one namespace."""
    client: Any
    if request.param == "fake":
        client = request.getfixturevalue("fake_redis")
        return lambda **options: RedisWheelJobStore(client=client, allow=FUNCTIONS, **options)
    url = request.getfixturevalue("redis_url")
    return lambda **options: RedisWheelJobStore(url, allow=FUNCTIONS, **options)


@pytest.fixture
def start(open_store: Callable[..., RedisWheelJobStore]) -> Iterator[Make]:
    """Starts background schedulers. Each has its own store object with leases, and all store objects share one
    namespace."""
    made: list[WheelBackgroundScheduler] = []

    def factory(paused: bool = False, delivery: str = "at_least_once", **options: Any) -> WheelBackgroundScheduler:
        scheduler = WheelBackgroundScheduler(timezone=UTC, **options)
        scheduler.add_jobstore(open_store(lease_s=60, delivery=delivery))
        scheduler.start(paused=paused)
        made.append(scheduler)
        return scheduler

    yield factory
    for scheduler in made:
        if scheduler.state != STATE_STOPPED and not scheduler.closing:
            scheduler.shutdown()


def test_a_burst_and_an_interval_run_and_are_settled(start: Make, witness_of: Make) -> None:
    """200 one-shot jobs and an interval job are due at once. Each runs once, and no run stays in flight."""
    scheduler = start(paused=True)
    witness = witness_of(scheduler, EVENT_JOB_EXECUTED)
    for number in range(200):
        scheduler.add_job("time:time", "date", run_date=past(), id=f"once-{number}")
    scheduler.add_job("time:time", "interval", seconds=3600, next_run_time=past(), id="often")
    scheduler.resume()
    witness.wait(EVENT_JOB_EXECUTED, 201)
    assert scheduler.drain(PATIENCE_S)
    store = scheduler._jobstores["default"]
    wait_until(lambda: store.in_flight() == [], "everything was settled")
    assert sorted(witness.ids(EVENT_JOB_EXECUTED)) == sorted([*(f"once-{n}" for n in range(200)), "often"])
    assert [job.id for job in scheduler.get_jobs()] == ["often"]


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_what_was_claimed_when_a_pause_came_is_put_back(start: Make, witness_of: Make, delivery: str) -> None:
    """A scheduler is paused just after it has claimed two jobs. It puts them back, and another scheduler runs them at
    once, long before a lease would end."""
    first, second = start(paused=True, delivery=delivery), start(paused=True, delivery=delivery)
    seen = witness_of(first), witness_of(second)
    first.add_job("time:time", "date", run_date=past(), id="one")
    first.add_job("time:time", "interval", hours=1, next_run_time=past(), id="two")
    store = first._jobstores["default"]
    claim_batch = store.claim_batch
    claimed = threading.Event()

    def claim(*args: Any) -> Any:
        batch = claim_batch(*args)
        if batch.occurrences:
            first.pause()
            claimed.set()
        return batch

    store.claim_batch = claim
    first.resume()
    assert claimed.wait(PATIENCE_S)
    second.resume()
    seen[1].wait(EVENT_JOB_EXECUTED, 2)
    assert sorted(seen[1].ids(EVENT_JOB_EXECUTED)) == ["one", "two"]
    assert seen[0].of(EVENT_JOB_SUBMITTED) == []


def test_the_last_run_of_a_job_with_too_many_instances_comes_again(
    start: Make, witness_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor refuses the only run of a one-shot job. Stock APScheduler removes the job without a run. Here an
    event reports the refusal, and the job runs when the executor accepts it."""
    monkeypatch.setattr("wheel_sched_apscheduler.schedulers.claiming_source.RETRY_REFUSED_MS", 20)
    scheduler = start(executors={"default": ThreadPoolExecutor(2)})
    witness = witness_of(scheduler)
    instances = scheduler._executors["default"]._instances
    instances["one"] = 1  # as if a run of the job were going on
    scheduler.add_job("time:time", "date", run_date=past(), id="one")
    witness.wait(EVENT_JOB_MAX_INSTANCES)
    del instances["one"]
    witness.wait(EVENT_JOB_EXECUTED)


def test_back_pressure_leaves_the_rest_in_the_store(start: Make, witness_of: Make) -> None:
    """The scheduler has at most `max_in_flight` claimed jobs at a time. It claims more when some of them have ended."""
    scheduler = start(paused=True, max_in_flight=40, executors={"default": ThreadPoolExecutor(4)})
    witness = witness_of(scheduler)
    for number in range(100):
        scheduler.add_job("time:sleep", "date", args=[0.01], run_date=past(), id=str(number))
    store = scheduler._jobstores["default"]
    most = 0
    mark_submitted = store.mark_submitted

    def watch(occurrences: Any) -> None:
        nonlocal most
        mark_submitted(occurrences)
        source = scheduler._sources["default"]
        most = max(most, len(source.limits))

    store.mark_submitted = watch
    scheduler.resume()
    witness.wait(EVENT_JOB_EXECUTED, 100)
    assert 0 < most <= 40


@pytest.mark.parametrize("kind", ["wheel", "at_least_once", "at_most_once"])
def test_a_stuck_executor_holds_up_no_other(
    open_store: Callable[..., RedisWheelJobStore], witness_of: Make, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One of two executors is stuck. The other one's jobs run, although the stuck one's jobs are due first. Later each
    job of the stuck executor runs once."""
    monkeypatch.setattr("wheel_sched_apscheduler.schedulers.claiming_source.BACK_AFTER_S", 0.05)
    store: Any = WheelJobStore() if kind == "wheel" else open_store(lease_s=60, delivery=kind)
    executors = {"stuck": ThreadPoolExecutor(1), "default": ThreadPoolExecutor(1)}
    gate = threading.Event()
    executors["stuck"]._pool.submit(gate.wait)
    scheduler = WheelBackgroundScheduler(timezone=UTC, max_in_flight=8, batch=16, executors=executors)
    scheduler.add_jobstore(store)
    witness = witness_of(scheduler)
    scheduler.start(paused=True)
    try:
        for number in range(60):
            scheduler.add_job("time:time", "date", run_date=past(60), executor="stuck", id=f"stuck-{number}")
        for number in range(20):
            scheduler.add_job("time:time", "date", run_date=past(1), id=f"other-{number}")
        scheduler.resume()
        witness.wait(EVENT_JOB_EXECUTED, 20)
        assert sorted(witness.ids(EVENT_JOB_EXECUTED)) == sorted(f"other-{number}" for number in range(20))
        assert len(scheduler._sources["default"].limits) == 8
        gate.set()
        witness.wait(EVENT_JOB_EXECUTED, 80)
        wait_until(lambda: store.count() == 0 and store.in_flight() == [], "everything was settled")
        assert len(set(witness.ids(EVENT_JOB_EXECUTED))) == len(witness.ids(EVENT_JOB_EXECUTED)) == 80
    finally:
        gate.set()
        scheduler.shutdown()


def test_a_run_that_came_too_late_is_reported_and_settled(start: Make, witness_of: Make) -> None:
    """A job is claimed a minute late, and its grace time is five seconds. It does not run: an event reports it as
    missed, and the store no longer has it."""
    scheduler = start()
    witness = witness_of(scheduler)
    scheduler.add_job("time:time", "date", run_date=past(60), misfire_grace_time=5, id="late")
    assert witness.wait(EVENT_JOB_MISSED)[0].job_id == "late"
    store = scheduler._jobstores["default"]
    wait_until(lambda: store.count() == 0 and store.in_flight() == [], "the run was settled")
    assert witness.of(EVENT_JOB_EXECUTED) == []


def test_a_coroutine_cut_short_by_the_end_comes_again(open_store: Callable[..., RedisWheelJobStore]) -> None:
    """The scheduler shuts down while a coroutine job runs. This is no error of the job: the store keeps the job, and it
    is no longer in flight."""
    events: list[Any] = []

    async def main() -> None:
        scheduler = WheelAsyncIOScheduler(timezone=UTC)
        scheduler.add_jobstore(open_store(lease_s=60))
        begun, over = asyncio.Event(), asyncio.Event()
        scheduler.add_listener(lambda _: begun.set(), EVENT_JOB_SUBMITTED)
        scheduler.add_listener(lambda _: over.set(), EVENT_SCHEDULER_SHUTDOWN)
        scheduler.add_listener(events.append, EVENT_JOB_ERROR | EVENT_JOB_EXECUTED)
        scheduler.start()
        scheduler.add_job("asyncio:sleep", "date", args=[3600], run_date=past(), id="long")
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
            await asyncio.sleep(0)
            scheduler.shutdown()
            await over.wait()

    asyncio.run(main())
    assert events == []
    store = open_store(lease_s=60)
    try:
        wait_until(lambda: store.in_flight() == [], "the lease was given back")
        assert store.lookup_job("long") is not None
    finally:
        store.shutdown()


@pytest.mark.parametrize("executor", [ThreadPoolExecutor(1), DebugExecutor()], ids=["threads", "unknown"])
def test_a_job_knows_its_occurrence(witness_of: Make, executor: Any) -> None:
    """A job reads the stable id of its occurrence (one run of the job) and a fencing token. It can do so in a thread
    pool, and in an executor that only has `submit_job`."""
    scheduler = WheelBackgroundScheduler(
        timezone=UTC, jobstores={"default": WheelJobStore()}, executors={"default": executor}
    )
    witness = witness_of(scheduler)
    scheduler.start()
    due = soon()
    try:
        scheduler.add_job(current_occurrence, "date", run_date=due, id="one")
        occurrence = witness.wait(EVENT_JOB_EXECUTED)[0].retval
    finally:
        scheduler.shutdown()
    assert (occurrence.job_id, occurrence.run_time, occurrence.redelivered) == ("one", due, False)
    since_1970_us = (due - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert occurrence.id == f"one:{-(-since_1970_us // 1000)}"
    assert occurrence.token > 0


def test_a_coroutine_knows_its_occurrence() -> None:
    """Coroutine jobs run at the same time, and each reads its own occurrence."""
    found: dict[str, str] = {}

    async def note(name: str) -> None:
        await asyncio.sleep(0)
        occurrence = current_occurrence()
        assert occurrence is not None
        found[name] = occurrence.job_id

    async def main() -> None:
        scheduler = WheelAsyncIOScheduler(timezone=UTC, jobstores={"default": WheelJobStore()})
        over = asyncio.Event()
        scheduler.add_listener(lambda _: over.set(), EVENT_SCHEDULER_SHUTDOWN)
        scheduler.start(paused=True)
        for number in range(50):
            scheduler.add_job(note, "date", args=[str(number)], run_date=past(), id=str(number))
        scheduler.resume()
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 50:
                await asyncio.sleep(0.005)  # the tasks send no signal
            scheduler.shutdown()
            await over.wait()

    asyncio.run(main())
    assert found == {str(number): str(number) for number in range(50)}


@pytest.mark.real
@pytest.mark.slow
def test_a_server_that_goes_away_leaves_the_loop_alive(witness_of: Make) -> None:
    """The server is killed, and a job becomes due meanwhile. The scheduler keeps running, and runs the job when the
    server is back."""
    with temporary_server(fsync="always") as server:
        scheduler = WheelBackgroundScheduler(timezone=UTC)
        scheduler.add_jobstore(RedisWheelJobStore(server.url, allow=FUNCTIONS, lease_s=60))
        witness = witness_of(scheduler)
        scheduler.start()
        try:
            scheduler.add_job("time:time", "date", run_date=soon(0.5), id="meanwhile")
            server.sigkill()
            time.sleep(1)  # the job becomes due while there is no server
            assert scheduler.running
            server.restart()
            witness.wait(EVENT_JOB_EXECUTED)
        finally:
            scheduler.shutdown()
