"""Schedulers start while their store is away, and run its jobs when the store answers."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from wheel_sched_apscheduler import Producer, RedisWheelJobStore, WheelBackgroundScheduler
from wheel_sched_apscheduler.codec import NotSerializable
from wheel_sched_apscheduler.occurrence import Finish
from wheel_sched_apscheduler.stores.connection import LINGER_S, OccurrenceSettler, StoreConnection

from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.errors import NamespaceMismatch, StoreUnavailable
from wheel_sched.store import open_store

NOBODY = "redis://127.0.0.1:1"  # where connections are refused
ran: list[str] = []


def note(name: str) -> None:
    ran.append(name)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain until {what}"
        time.sleep(0.002)  # another thread makes it true, without a signal


@pytest.fixture(params=[BackgroundScheduler, WheelBackgroundScheduler])
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes schedulers over stores and starts them. A function may change a scheduler before its start."""
    ran.clear()
    with ExitStack() as stack:

        def started(store: Any, before: Callable[[Any], None] = lambda _: None) -> Any:
            scheduler = request.param(timezone="UTC")
            scheduler.add_jobstore(store)
            before(scheduler)
            scheduler.start()
            stack.callback(scheduler.shutdown)
            return scheduler

        yield started


def test_a_scheduler_starts_without_its_store(start: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """The scheduler starts, logs one line, and can be shut down. Adding a job to the running scheduler raises an
    error."""
    store = RedisWheelJobStore(NOBODY)
    with caplog.at_level(logging.WARNING):
        scheduler = start(store, lambda each: each.add_job(note, "date", args=["early"], id="early"))
        assert scheduler.running
        with pytest.raises(StoreUnavailable, match="no connection"):
            scheduler.add_job(note, "date", args=["late"])
        assert store.claim_batch(datetime.now(UTC)).occurrences == []
        scheduler.shutdown()
    assert sum("does not answer yet" in record.message for record in caplog.records) == 1
    assert any("these jobs were not stored: 'early'" in record.message for record in caplog.records)
    scheduler.start()  # because the fixture shuts the scheduler down


def test_a_pass_does_not_wait_for_a_connection(start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass may run on an event loop. So after the start only the settler thread tries to open the store."""
    tries: list[str] = []

    def refused(*_: Any, **__: Any) -> None:
        tries.append(threading.current_thread().name)
        raise StoreUnavailable("no answer, on purpose")

    monkeypatch.setattr("wheel_sched_apscheduler.stores.connection.open_store", refused)
    store = RedisWheelJobStore(NOBODY)
    start(store)
    for _ in range(3):
        assert store.claim_batch(datetime.now(UTC)).occurrences == []
    wait_until(lambda: len(tries) >= 3, "the store was tried again")
    assert set(tries) == {"wheel-sched-settler"}


def test_a_start_does_not_wait_for_a_server_that_hangs(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server accepts connections and never answers. A start may run on an event loop, so it must not wait."""
    monkeypatch.setattr("wheel_sched_apscheduler.stores.connection.OPEN_AT_ONCE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as mute, caplog.at_level(logging.WARNING):
        before_s = time.monotonic()
        scheduler = start(RedisWheelJobStore(f"redis://127.0.0.1:{mute.getsockname()[1]}"))
        assert scheduler.running
        scheduler.shutdown()
        assert time.monotonic() - before_s < 3
    assert "The store does not answer yet" in caplog.text
    scheduler.start()  # because the fixture shuts the scheduler down


def test_a_pass_that_comes_after_the_shutdown_claims_nothing(open_fake: Callable[..., Any]) -> None:
    """A stock scheduler's thread may make one more pass after `shutdown`. It claims nothing, because no thread would
    settle the claims."""
    store = open_fake()
    store.start(None, "default")
    Producer(store, timezone="UTC").add_job(note, "date", args=["late"])
    other = open_fake()
    store.shutdown()
    assert store.claim_batch(datetime.now(UTC)).occurrences == []
    assert len(other.claim_batch(datetime.now(UTC) + timedelta(seconds=1)).occurrences) == 1


def test_a_shutdown_waits_for_a_store_that_is_away_for_a_moment(
    open_fake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`shutdown` waits until the end of each run is reported. Otherwise the run would be repeated although no process
    has died."""
    store = open_fake()
    store.start(None, "default")
    Producer(store, timezone="UTC").add_job(note, "date", args=["once"])
    (occurrence,) = store.claim_batch(datetime.now(UTC)).occurrences
    occurrence.plan(None)
    store.mark_submitted([occurrence])
    execute, until_s = store.connection.store.execute, time.monotonic() + 0.3

    def refused(calls: Any) -> Any:
        if time.monotonic() < until_s:
            return [StoreUnavailable("away, on purpose") for _ in calls]
        return execute(calls)

    monkeypatch.setattr(store.connection.store, "execute", refused)
    store.finish(occurrence, Finish.EXECUTED)
    store.shutdown()
    assert open_fake().count() == 0


@pytest.mark.parametrize("runs", [True, False])
def test_a_settler_that_ends_does_not_run_in_circles(monkeypatch: pytest.MonkeyPatch, runs: bool) -> None:
    """At its end the settler thread pauses between attempts to send, even if something always stays unsent."""
    monkeypatch.setattr("wheel_sched_apscheduler.stores.connection.PATIENCE_S", 0.2)
    flushes: list[float] = []
    settler = OccurrenceSettler(
        StoreConnection("memory:", {"namespace": "circles", "shards": 1}),
        flush=lambda: flushes.append(time.monotonic()),
        extend_leases=lambda: None,
        next_s=lambda: 0.0 if len(flushes) < 20 else None,
        earlier_due=lambda _: None,
        opened=lambda: None,
        extend_every_s=60,
    )
    settler.start()
    ended = threading.Event()
    before_s = time.monotonic()
    settler.stop(until=lambda: len(flushes) >= 20, runs=lambda: runs, then=ended.set)
    assert ended.wait(30)
    assert time.monotonic() - before_s > 10 * LINGER_S


def test_a_run_that_is_put_back_waits_by_both_clocks(open_fake: Callable[..., Any]) -> None:
    """The store's clock is a minute ahead. A run that is put back for a second does not wait a minute longer."""
    store = open_fake()
    Producer(store, timezone="UTC").add_job(note, "date", args=["once"], id="once")
    (occurrence,) = store.claim_batch(datetime.now(UTC)).occurrences
    local_ms = time.time_ns() // 1_000_000
    store.connection.note_server_time(local_ms + 60_000, local_ms)
    store.release([occurrence], 1_000)
    store.tracker.flush()
    (found,) = store.connection.store.get(["once"])
    assert found is not None
    assert local_ms + 1_000 <= found.score_ms < local_ms + 30_000


@pytest.mark.real
def test_a_store_that_answers_late_is_opened_late(
    start: Callable[..., Any], real_server: TemporaryServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that were added before the start run when the store opens. None of them is lost."""
    monkeypatch.setattr("wheel_sched_apscheduler.stores.connection.OPEN_AT_ONCE_S", 0.01)
    answered = threading.Event()

    def late(*args: Any, **settings: Any) -> Any:
        assert answered.wait(30)
        return open_store(*args, **settings)

    monkeypatch.setattr("wheel_sched_apscheduler.stores.connection.open_store", late)
    store = RedisWheelJobStore(real_server.url, namespace=namespace)
    start(store, lambda each: each.add_job(note, "date", args=["early"]))
    assert ran == []
    answered.set()
    wait_until(lambda: ran == ["early"] and store.count() == 0, "the job had run")


def test_what_can_never_be_stored_is_refused_at_the_start() -> None:
    """A job that was added before the start cannot be serialized. `start` raises, although the store is away."""
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_jobstore(RedisWheelJobStore(NOBODY))
    scheduler.add_job(lambda: None, "date", run_date=datetime.now(UTC) + timedelta(days=1))
    try:
        with pytest.raises(NotSerializable):
            scheduler.start()
    finally:
        scheduler._jobstores["default"].shutdown()


@pytest.fixture(scope="module")
def moody_server() -> Iterator[TemporaryServer]:
    with temporary_server() as server:
        yield server


@pytest.mark.real
def test_its_jobs_run_when_the_store_is_back(
    start: Callable[..., Any], moody_server: TemporaryServer, namespace: str
) -> None:
    """A scheduler starts while its store is away. When the store is back, stored jobs run, and so do jobs that were
    added before or after the start."""
    before = RedisWheelJobStore(moody_server.url, namespace=namespace)
    soon = datetime.now(UTC) + timedelta(seconds=0.1)
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_jobstore(before)
    scheduler.start(paused=True)
    scheduler.add_job(note, "date", run_date=soon, args=["stored"], id="stored")
    scheduler.add_job(note, "interval", seconds=3600, args=["wrong"], id="kept")
    scheduler.shutdown()
    moody_server.stop()

    def early(each: Any) -> None:
        each.add_job(note, "date", run_date=soon, args=["early"], id="early")
        each.add_job(note, "date", run_date=soon, args=["kept"], id="kept", replace_existing=True)

    later = start(RedisWheelJobStore(moody_server.url, namespace=namespace), early)
    moody_server.restart()
    wait_until(lambda: set(ran) == {"stored", "early", "kept"}, "all had run")
    later.add_job(note, "date", args=["late"])
    wait_until(lambda: "late" in ran, "the jobs that were added afterwards had run")
    assert sorted(ran) == ["early", "kept", "late", "stored"]


@pytest.mark.real
def test_a_store_that_cannot_be_used_still_ends_the_start(real_server: TemporaryServer, namespace: str) -> None:
    """A namespace with another number of shards never becomes usable, so the start raises and does not wait."""
    RedisWheelJobStore(real_server.url, namespace=namespace, shards=2).store.close()
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_jobstore(RedisWheelJobStore(real_server.url, namespace=namespace))
    with pytest.raises(NamespaceMismatch):
        scheduler.start()


OWN = """
import sys
from wheel_sched_apscheduler import RedisWheelJobStore
store = RedisWheelJobStore(f"embedded:{sys.argv[1]}").store
print(store.backend.server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.real
def test_an_embedded_server_is_taken_over_from_a_process_that_died(start: Callable[..., Any], tmp_path: Path) -> None:
    """The process that owns an embedded server is killed, and the server ends. The scheduler starts the server again,
    and its jobs run."""
    command = [sys.executable, "-c", OWN, str(tmp_path / "jobs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        store = RedisWheelJobStore(f"embedded:{tmp_path / 'jobs'}")
        scheduler = start(store)
        assert store.store.backend.server.pid == pid  # type: ignore[attr-defined]
        scheduler.add_job(note, "interval", seconds=0.05, args=["tick"], id="tick")
        wait_until(lambda: "tick" in ran, "the job ran")
        owner.kill()
        wait_until(lambda: store.store.backend.server.pid != pid, "the server was started again")  # type: ignore[attr-defined]
        before = len(ran)
        wait_until(lambda: len(ran) >= before + 3, "the job ran on")
        scheduler.add_job(note, "date", args=["late"])
        wait_until(lambda: "late" in ran, "the jobs that were added afterwards had run")
