"""Stock schedulers of every kind run jobs of both jobstores. A running job may change jobs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.job import Job
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.date import DateTrigger
from wheel_sched_apscheduler import RedisWheelJobStore, WheelJobStore, current_occurrence
from wheel_sched_apscheduler.schedulers import WheelBackgroundScheduler

from tests.servers.valkey import TemporaryServer
from wheel_sched.errors import StoreError, StoreUnavailable

PATIENCE_S = 30.0

ran: list[tuple[str, Any]] = []
gates: dict[str, threading.Event] = {}
schedulers: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    ran.clear()
    gates.clear()
    schedulers.clear()
    yield
    for gate in gates.values():
        gate.set()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain until {what}"
        time.sleep(0.002)  # another thread makes it true, without a signal


def stop(scheduler: Any, **options: Any) -> None:
    """Stop a scheduler between two passes. In a pass, APScheduler's own `remove_job` would fail in its thread."""
    scheduler.pause()
    with scheduler._jobstores_lock:
        pass
    scheduler.shutdown(**options)


def note(name: str = "") -> None:
    ran.append((name, current_occurrence()))


def wait_at(gate: str) -> None:
    ran.append((gate, current_occurrence()))
    assert gates.setdefault(gate, threading.Event()).wait(PATIENCE_S)


async def note_later(name: str) -> None:
    await asyncio.sleep(0)
    ran.append((name, current_occurrence()))


def tell_fire() -> str:
    occurrence = current_occurrence()
    assert occurrence is not None
    return occurrence.id


def raise_on_purpose() -> None:
    ran.append(("error", current_occurrence()))
    raise ValueError("on purpose")


def add_again(job_id: str) -> None:
    """A one-shot job that adds itself again, two times."""
    ran.append((job_id, current_occurrence()))
    if len(ran) < 3:
        schedulers["it"].add_job(add_again, "date", args=[job_id], id=job_id)


def remove_self(job_id: str) -> None:
    ran.append((job_id, current_occurrence()))
    schedulers["it"].remove_job(job_id)


def move_self(job_id: str) -> None:
    ran.append((job_id, current_occurrence()))
    schedulers["it"].reschedule_job(job_id, trigger="interval", hours=5)


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.real)])
def opened(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a store: in memory, or a shared one. Only the shared store uses the settings."""
    if request.param == "memory":
        return lambda **_: WheelJobStore()
    made: Callable[..., Any] = request.getfixturevalue("open_real")
    return made


Started = Callable[..., BackgroundScheduler]


@pytest.fixture
def started() -> Iterator[Started]:
    """Starts stock schedulers over stores, and stops them at the end."""
    running: list[BackgroundScheduler] = []

    def start(store: Any, kind: Any = BackgroundScheduler, **options: Any) -> BackgroundScheduler:
        scheduler = kind(timezone="UTC", **options)
        scheduler.add_jobstore(store)
        scheduler.start()
        running.append(scheduler)
        schedulers["it"] = scheduler
        return scheduler

    yield start
    for gate in gates.values():
        gate.set()
    for scheduler in running:
        if scheduler.running:
            stop(scheduler)


def test_jobs_run_on_time_and_know_their_occurrence(opened: Any, started: Started) -> None:
    """A job can read its occurrence: the id, the run time, and a token that grows."""
    scheduler = started(opened())
    start = datetime.now(UTC) + timedelta(milliseconds=50)
    for number in range(20):
        scheduler.add_job(
            note, "date", args=[str(number)], run_date=start + timedelta(milliseconds=number), id=f"j{number}"
        )
    wait_until(lambda: len(ran) == 20, "all had run")
    for name, occurrence in ran:
        moment = start + timedelta(milliseconds=int(name))
        assert (occurrence.job_id, occurrence.run_time) == (f"j{name}", moment)
        assert occurrence.id == f"j{name}:{-(-int(moment.timestamp() * 1_000_000) // 1000)}"
        assert occurrence.token > 0
    assert current_occurrence() is None
    wait_until(lambda: scheduler.get_jobs() == [], "the jobs were gone")


def test_recurring_jobs_go_on(opened: Any, started: Started) -> None:
    """The token of an occurrence grows from run to run, and the next run time advances."""
    scheduler = started(opened())
    scheduler.add_job(note, "interval", seconds=0.05, id="a", misfire_grace_time=None)
    wait_until(lambda: len(ran) >= 4, "four runs had taken place")
    tokens = [occurrence.token for _, occurrence in ran]
    assert tokens == sorted(set(tokens))
    assert scheduler.get_job("a").next_run_time > ran[2][1].run_time
    scheduler.remove_job("a")
    assert scheduler.get_job("a") is None


def test_an_error_of_a_job_is_its_own(opened: Any, started: Started) -> None:
    """An event reports the error, and the job stays scheduled."""
    scheduler = started(opened())
    events: list[Any] = []
    scheduler.add_listener(events.append, EVENT_JOB_ERROR)
    scheduler.add_job(raise_on_purpose, "interval", seconds=0.05, id="a")
    wait_until(lambda: len(events) >= 2, "the job had failed twice")
    assert repr(events[0].exception) == "ValueError('on purpose')"


def test_a_job_may_add_itself_again_while_it_runs(opened: Any, started: Started) -> None:
    """A one-shot leaves the schedule when it begins, so its id is free. Each run happens once."""
    scheduler = started(opened())
    scheduler.add_job(add_again, "date", args=["a"], id="a")
    wait_until(lambda: len(ran) == 3, "the job had added itself twice")
    wait_until(lambda: scheduler.get_jobs() == [], "the job was gone")
    assert len({occurrence.id for _, occurrence in ran}) == 3


def test_a_job_may_remove_itself_while_it_runs(opened: Any, started: Started) -> None:
    """A job that removes itself while it runs does not run again."""
    scheduler = started(opened())
    scheduler.add_job(remove_self, "interval", seconds=0.05, args=["a"], id="a")
    scheduler.add_job(note, "interval", seconds=0.05, args=["b"])
    wait_until(lambda: sum(name == "a" for name, _ in ran) >= 1, "the job had run")
    wait_until(lambda: sum(name == "b" for name, _ in ran) >= 4, "the other job had run on")
    assert sum(name == "a" for name, _ in ran) == 1
    assert scheduler.get_job("a") is None


def test_a_job_may_reschedule_itself_while_it_runs(opened: Any, started: Started) -> None:
    """The job's next run is the one that it has set itself, not the one that the scheduler had planned."""
    scheduler = started(opened())
    scheduler.add_job(move_self, "interval", seconds=0.05, args=["a"], id="a")
    scheduler.add_job(note, "interval", seconds=0.05, args=["b"])
    wait_until(lambda: sum(name == "a" for name, _ in ran) >= 1, "the job had run")
    wait_until(lambda: sum(name == "b" for name, _ in ran) >= 4, "the other job had run on")
    assert sum(name == "a" for name, _ in ran) == 1
    wait_until(
        lambda: scheduler.get_job("a").next_run_time > datetime.now(UTC) + timedelta(hours=4), "its change was kept"
    )


def test_an_executor_inside_the_pass_may_do_the_same(opened: Any, started: Started) -> None:
    """DebugExecutor runs the job inside a pass, under the scheduler's lock. The job reschedules or removes itself."""
    scheduler = started(opened(), executors={"default": DebugExecutor()})
    scheduler.add_job(move_self, "interval", seconds=0.05, args=["move"], id="move")
    scheduler.add_job(remove_self, "interval", seconds=0.05, args=["remove"], id="remove")
    scheduler.add_job(note, "interval", seconds=0.05, args=["b"])
    wait_until(lambda: {"move", "remove"} <= {name for name, _ in ran}, "both had run")
    wait_until(lambda: sum(name == "b" for name, _ in ran) >= 4, "the other job had run on")
    assert sorted(name for name, _ in ran if name != "b") == ["move", "remove"]
    assert scheduler.get_job("remove") is None
    assert scheduler.get_job("move").next_run_time > datetime.now(UTC) + timedelta(hours=4)


@pytest.mark.slow
def test_a_last_run_that_finds_no_room_is_not_lost(opened: Any, started: Started) -> None:
    """Stock APScheduler deletes a one-shot job when `max_instances` runs of its id are in flight. Here the job runs
    later."""
    scheduler = started(opened())
    events: list[Any] = []
    scheduler.add_listener(events.append, EVENT_JOB_MAX_INSTANCES)
    scheduler.add_job(wait_at, "date", args=["first"], id="a")
    wait_until(lambda: len(ran) == 1, "the first run was under way")
    scheduler.add_job(note, "date", args=["second"], id="a")
    wait_until(lambda: len(events) >= 1, "the second run was refused")
    assert [name for name, _ in ran] == ["first"]
    gates["first"].set()
    wait_until(lambda: [name for name, _ in ran] == ["first", "second"], "the second had run")


@pytest.mark.slow
def test_lateness_counts_from_the_claim(opened: Any, started: Started) -> None:
    """With one worker thread and a default grace of one second, jobs that wait for the worker still run."""
    scheduler = started(opened(), executors={"default": {"type": "threadpool", "max_workers": 1}})
    missed: list[Any] = []
    scheduler.add_listener(missed.append, EVENT_JOB_MISSED)
    scheduler.add_job(wait_at, "date", args=["gate"])
    for number in range(5):
        scheduler.add_job(note, "date", args=[str(number)], misfire_grace_time=1)
    wait_until(lambda: len(ran) == 1, "the worker was busy")
    time.sleep(1.2)  # longer than the grace time, which is what is tested
    gates["gate"].set()
    wait_until(lambda: len(ran) == 6, "all had run")
    assert missed == []


@pytest.mark.real
def test_what_is_claimed_too_late_is_missed(open_real: Any, started: Started) -> None:
    """A run that is claimed after its grace time does not run. An event reports it."""
    store = open_real()
    scheduler = started(store)
    missed: list[Any] = []
    scheduler.add_listener(missed.append, EVENT_JOB_MISSED)
    scheduler.add_job(note, "date", run_date=datetime.now(UTC) - timedelta(seconds=60), misfire_grace_time=5)
    wait_until(lambda: len(missed) == 1, "the run was missed")
    wait_until(lambda: store.count() == 0, "the job was gone")
    assert ran == []


@pytest.mark.real
def test_at_most_once_leaves_the_store_before_it_runs(open_real: Any, started: Started) -> None:
    """While a run is under way, the store no longer has it. A recurring job already waits for its next run."""
    store = open_real(delivery="at_most_once")
    scheduler = started(store)
    scheduler.add_job(wait_at, "date", args=["once"], id="once")
    scheduler.add_job(wait_at, "interval", seconds=3600, args=["again"], id="again", next_run_time=datetime.now(UTC))
    wait_until(lambda: len(ran) == 2, "both were under way")
    assert store.in_flight() == []
    assert [entry.id for entry in store.entries()] == ["again"]
    assert store.get_entry("again").next_run_time > datetime.now(UTC) + timedelta(minutes=50)


@pytest.mark.real
@pytest.mark.parametrize(
    ("scope", "kind"),
    [("store", BackgroundScheduler), ("process", BackgroundScheduler), ("store", WheelBackgroundScheduler)],
)
def test_max_instances_holds_over_all_processes(open_real: Any, started: Started, scope: str, kind: Any) -> None:
    """With the scope "store", the next run of a long job is skipped. With "process", another process runs it."""
    events: list[Any] = []
    for store in [open_real(max_instances_scope=scope) for _ in range(2)]:
        started(store, kind).add_listener(events.append, EVENT_JOB_MAX_INSTANCES)
    schedulers["it"].add_job(wait_at, "interval", seconds=0.1, args=["gate"], id="a")
    schedulers["it"].add_job(note, "interval", seconds=0.1, args=["other"])
    wait_until(lambda: sum(name == "gate" for name, _ in ran) >= 1, "the run was under way")
    before = len(ran)
    wait_until(lambda: len(ran) >= before + 10 and len(events) >= 3, "the other job had run on, and runs were skipped")
    assert sum(name == "gate" for name, _ in ran) == (1 if scope == "store" else 2)
    assert {event.job_id for event in events} == {"a"}
    gates["gate"].set()
    begun = sum(name == "gate" for name, _ in ran)
    wait_until(lambda: sum(name == "gate" for name, _ in ran) > begun, "the next had run")


@pytest.mark.real
def test_a_change_from_another_process_reaches_a_running_job(open_real: Any, started: Started) -> None:
    """A long run gets an item of its own, so other processes can pause or remove its job."""
    scheduler = started(open_real())
    other = open_real()
    scheduler.add_job(wait_at, "interval", seconds=0.2, args=["gate"], id="a", max_instances=1)
    wait_until(lambda: len(ran) == 1, "the run was under way")
    other.pause("a")
    assert scheduler.get_job("a").next_run_time is None
    gates["gate"].set()
    wait_until(lambda: other.in_flight() == [], "the run had ended")
    assert other.get_entry("a").state == "paused"
    other.remove_job("a")
    assert scheduler.get_job("a") is None


@pytest.mark.real
def test_two_processes_never_both_add_an_id(open_real: Any, make_job: Any) -> None:
    """Of two processes that add the same id at once, one succeeds and the other is refused."""
    stores = [open_real(), open_real()]
    for round_ in range(20):
        barrier = threading.Barrier(2)
        outcomes: list[str] = []

        def add(store: Any, job: Any, barrier: Any = barrier, outcomes: list[str] = outcomes) -> None:
            barrier.wait()
            try:
                store.add_job(job)
                outcomes.append("added")
            except ConflictingIdError:
                outcomes.append("refused")

        threads = [
            threading.Thread(target=add, args=(store, make_job(datetime.now(UTC), id=f"r{round_}"))) for store in stores
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["added", "refused"]


@pytest.mark.real
def test_huge_arguments_are_stored_and_too_huge_ones_refused(open_real: Any, make_job: Any) -> None:
    """A job of a megabyte is stored. A job above the store's limit is refused with an error."""
    store = open_real()
    store.add_job(make_job(datetime.now(UTC), id="big", args=("x" * 1_000_000,)))
    assert len(store.lookup_job("big").args[0]) == 1_000_000
    with pytest.raises(ValueError, match="the limit is"):
        store.add_job(make_job(datetime.now(UTC), id="huge", args=("x" * 17_000_000,)))
    assert store.lookup_job("huge") is None


@pytest.mark.real
def test_a_store_that_fails_ends_no_loop(open_real: Any, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls to the store fail for a while, with two kinds of errors. Afterwards the jobs run."""
    store = open_real()
    scheduler = started(store)
    scheduler.add_job(note, "interval", seconds=0.05, args=["a"], id="a", misfire_grace_time=None)
    wait_until(lambda: len(ran) >= 2, "the job had run")
    backend = store.store.backend
    failed = []

    def fail(calls: Any, *_: Any) -> list[Any]:
        failed.append(len(calls))
        return [StoreUnavailable("on purpose") if len(failed) % 2 else StoreError("on purpose") for _ in calls]

    with monkeypatch.context() as patched:
        patched.setattr(backend, "execute", fail)
        wait_until(lambda: len(failed) >= 4, "the store had failed")
        with pytest.raises(StoreError):
            scheduler.get_jobs()
    before = len(ran)
    wait_until(lambda: len(ran) >= before + 3, "the job ran again")
    assert scheduler._thread.is_alive()


@pytest.mark.real
def test_a_flushed_server_takes_the_jobs_and_not_the_scheduler(
    open_real: Any, started: Started, redis_client: Any, namespace: str
) -> None:
    """A flush deletes the namespace. The first call that notices this creates it again, and later jobs run."""
    scheduler = started(open_real(max_sleep_s=0.05))
    scheduler.add_job(note, "date", run_date=datetime.now(UTC) + timedelta(hours=1), id="lost")
    redis_client.flushall()
    scheduler.add_job(note, "date", args=["added at once"])
    wait_until(lambda: [name for name, _ in ran] == ["added at once"], "the job had run")
    redis_client.flushall()
    wait_until(
        lambda: any(namespace in key.decode() for key in redis_client.scan_iter()),
        "a pass had created the namespace again",
    )
    scheduler.add_job(note, "interval", seconds=0.05, args=["added later"])
    wait_until(lambda: len(ran) >= 3, "the job had run twice")
    assert scheduler.get_job("lost") is None


@pytest.mark.real
def test_a_lease_that_ran_out_under_a_living_job_is_taken_up_again(open_real: Any, started: Started) -> None:
    """A lease ends while its job still runs. The process takes the lease again, and the job runs once."""
    store = open_real(lease_s=1)
    store.tracker.extend_leases = lambda: None
    scheduler = started(store)
    scheduler.add_job(wait_at, "date", args=["once"], id="once")
    scheduler.add_job(wait_at, "interval", seconds=3600, args=["again"], id="again", next_run_time=datetime.now(UTC))
    wait_until(lambda: len(ran) == 2, "both were under way")
    first = {run.job_id: run.lease_until_ms for run in store.in_flight()}

    def renewed() -> bool:
        now = {run.job_id: run.lease_until_ms for run in store.in_flight()}
        return now.keys() == first.keys() and all(now[job_id] > first[job_id] for job_id in now)

    wait_until(renewed, "both leases had ended and the process had taken them again")
    assert len(ran) == 2
    for gate in ("once", "again"):
        gates[gate].set()
    wait_until(lambda: store.in_flight() == [], "both had ended")
    assert len(ran) == 2
    assert [entry.id for entry in store.entries()] == ["again"]


@pytest.mark.real
def test_a_shutdown_that_does_not_wait_leaves_the_lease_with_the_job(open_real: Any, started: Started) -> None:
    """A running job's lease is still extended after the shutdown, and its end is reported."""
    store, other = open_real(lease_s=9), open_real()
    scheduler = started(store)
    scheduler.add_job(wait_at, "date", args=["gate"], id="a")
    wait_until(lambda: len(ran) == 1, "the run was under way")
    stop(scheduler, wait=False)
    (before,) = other.in_flight()
    wait_until(
        lambda: any(run.lease_until_ms > before.lease_until_ms for run in other.in_flight()),
        "its lease was extended",
    )
    assert other.get_due_jobs(datetime.now(UTC)) == []
    other.get_next_run_time()
    assert len(other.in_flight()) == 1
    gates["gate"].set()
    wait_until(lambda: other.count() == 0, "the store knew the end of the run")


def test_coroutines_run_in_an_event_loop(opened: Any) -> None:
    """AsyncIOScheduler runs coroutine functions and plain functions, each with its occurrence."""

    async def main() -> None:
        scheduler = AsyncIOScheduler(timezone="UTC")
        scheduler.add_jobstore(opened())
        scheduler.start()
        scheduler.add_job(note_later, "date", args=["coroutine"])
        scheduler.add_job(note, "date", args=["plain"])
        scheduler.add_job(note_later, "interval", seconds=0.05, args=["tick"])
        until = time.monotonic() + PATIENCE_S
        while len(ran) < 5:
            assert time.monotonic() < until
            await asyncio.sleep(0.005)  # the loop runs them meanwhile
        stop(scheduler)

    asyncio.run(main())
    assert {name for name, _ in ran} == {"coroutine", "plain", "tick"}
    assert all(occurrence is not None for _, occurrence in ran)


def test_a_blocking_scheduler_runs_them_too(opened: Any) -> None:
    """BlockingScheduler runs the jobs of each store, and its `start` blocks the calling thread until the shutdown."""
    scheduler = BlockingScheduler(timezone="UTC")
    scheduler.add_jobstore(opened())
    scheduler.add_job(note, "interval", seconds=0.05, args=["a"])
    thread = threading.Thread(target=scheduler.start)
    thread.start()
    wait_until(lambda: len(ran) >= 3, "the job had run")
    stop(scheduler)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.real
@pytest.mark.slow
def test_a_process_pool_knows_the_occurrence_too(open_real: Any, started: Started) -> None:
    """The pool's process gets the occurrence together with the job."""
    scheduler = started(open_real(), executors={"default": {"type": "processpool", "max_workers": 1}})
    values: list[Any] = []
    scheduler.add_listener(lambda event: values.append(event.retval), EVENT_JOB_EXECUTED)
    scheduler.add_job(tell_fire, "date", id="a")
    wait_until(lambda: len(values) == 1, "the job had run")
    assert values[0].startswith("a:")


def test_the_stores_are_plugins(redis_url: str) -> None:
    """`add_jobstore` and a configuration can name the stores by their plugin alias."""
    scheduler = BackgroundScheduler(
        {
            "apscheduler.jobstores.default": {"type": "wheel-redis", "url": redis_url, "namespace": "conf"},
            "apscheduler.jobstores.here": {"type": "wheel"},
            "apscheduler.timezone": "UTC",
        }
    )
    scheduler.add_jobstore("wheel-redis", "more", url=redis_url, namespace="more", lease_s=5)
    scheduler.start()
    try:
        assert isinstance(scheduler._jobstores["default"], RedisWheelJobStore)
        assert isinstance(scheduler._jobstores["here"], WheelJobStore)
        for alias in ("default", "here", "more"):
            scheduler.add_job(note, "date", args=[alias], jobstore=alias)
        wait_until(lambda: len(ran) == 3, "each had run")
    finally:
        stop(scheduler)


@pytest.mark.real
def test_a_store_takes_any_client(
    redis_url: str, primary: TemporaryServer, sentinel_port: int, cluster: Any, started: Started
) -> None:
    """The store takes a plain client, a client of a Sentinel or of a Cluster (with shards), or an open delay store."""
    import redis
    from redis.sentinel import Sentinel

    from wheel_sched.store import open_store

    sentinel = Sentinel([("127.0.0.1", sentinel_port)])
    with redis.Redis.from_url(redis_url) as client, open_store(redis_url, namespace="given") as given:
        stores = {
            "client": RedisWheelJobStore(client=client, namespace="client"),
            "sentinel": RedisWheelJobStore(client=sentinel.master_for("main"), namespace="sentinel"),
            "cluster": RedisWheelJobStore(client=cluster, namespace="cluster", shards=4),
            "given": RedisWheelJobStore(store=given),
        }
        for name, store in stores.items():
            scheduler = started(store)
            for number in range(8):
                scheduler.add_job(note, "interval", seconds=0.1, args=[name], id=f"{name}{number}")
        wait_until(lambda: all(sum(n == name for n, _ in ran) >= 24 for name in stores), "all had run thrice")
        for name, store in stores.items():
            tokens = [occurrence.token for _, occurrence in ran if occurrence.job_id == f"{name}0"]
            assert tokens == sorted(set(tokens))
            assert store.count() == 8
        for name in stores:
            with pytest.raises(JobLookupError):
                schedulers["it"].remove_job(f"{name}-nobody")
        for gate in gates.values():
            gate.set()
        for store in stores.values():
            stop(store._scheduler)


@pytest.mark.real
@pytest.mark.slow
def test_a_store_over_an_embedded_server_needs_no_other(tmp_path: Any, started: Started) -> None:
    """The store only needs a folder. The jobs survive a restart."""
    url = f"embedded:{tmp_path / 'jobs'}"
    scheduler = started(RedisWheelJobStore(url))
    scheduler.add_job(note, "date", args=["now"])
    scheduler.add_job(note, "date", args=["later"], id="later", run_date=datetime.now(UTC) + timedelta(hours=1))
    wait_until(lambda: len(ran) == 1, "the job had run")
    stop(scheduler)
    again = started(RedisWheelJobStore(url))
    assert [job.id for job in again.get_jobs()] == ["later"]


class LosingExecutor(ThreadPoolExecutor):
    """Refuses the first job it gets, loses the second without an event, and runs all others."""

    def __init__(self) -> None:
        super().__init__(2)
        self.got: list[str] = []

    def _do_submit_job(self, job: Any, run_times: Any) -> None:
        self.got.append(job.id)
        if len(self.got) == 1:
            raise RuntimeError("the executor refuses")
        if len(self.got) == 2:
            future: Future[Any] = Future()
            # as APScheduler does it when the worker of a pool dies
            future.add_done_callback(lambda ended: self._run_job_error(job.id, ended.exception()))
            threading.Timer(0.05, lambda: future.set_exception(RuntimeError("the worker died"))).start()
            return
        super()._do_submit_job(job, run_times)


@pytest.mark.real
def test_what_an_executor_loses_is_handed_out_again(open_real: Any, started: Started) -> None:
    """An executor that refuses a submission, or whose worker dies, sends no event. The lease ends, and the job runs."""
    executor = LosingExecutor()
    store = open_real(lease_s=2)
    scheduler = started(store, executors={"default": executor})
    scheduler.add_job(note, "date", args=["a"], id="a", misfire_grace_time=1)
    wait_until(lambda: len(executor.got) == 1, "the first was refused")
    scheduler.add_job(note, "date", args=["b"], id="b", misfire_grace_time=5)
    wait_until(lambda: {name for name, _ in ran} == {"a", "b"}, "both had run")
    wait_until(lambda: store.count() == 0, "both were gone")
    assert all(occurrence.redelivered for _, occurrence in ran)


@pytest.mark.real
def test_a_job_whose_holder_died_is_not_too_late(open_real: Any, started: Started) -> None:
    """The job was claimed in time. The wait until the dead process's lease ends does not count as lateness."""
    gone = open_real(lease_s=1.5)
    scheduler = BackgroundScheduler(timezone="UTC")
    gone._scheduler, gone._alias = scheduler, "default"
    gone.add_job(scheduler_job("a", datetime.now(UTC), misfire_grace_time=1, func=note, args=("a",)))
    store = open_real(misfire="claim")
    assert len(gone.get_due_jobs(datetime.now(UTC))) == 1  # as if the process died after this claim
    started(store)
    wait_until(lambda: len(ran) == 1, "the job had run")
    assert ran[0][1].redelivered
    assert datetime.now(UTC) - ran[0][1].run_time > timedelta(seconds=1)


def scheduler_job(job_id: str, moment: datetime, **options: Any) -> Job:
    given = {"trigger": DateTrigger(moment, "UTC"), "executor": "default", "kwargs": {}, "coalesce": True}
    return Job(
        BackgroundScheduler(timezone="UTC"), id=job_id, next_run_time=moment, max_instances=1, **{**given, **options}
    )
