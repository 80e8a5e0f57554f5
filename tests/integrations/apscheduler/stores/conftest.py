"""Fixtures: jobstores in memory, on an imitation of Redis and on a server, and processes that share a store."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import fakeredis
import pytest
import redis
from apscheduler.job import Job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger
from wheel_sched_apscheduler import Producer, RedisWheelJobStore, WheelJobStore

from tests.servers.valkey import TemporaryServer, temporary_server

FOLDER = Path(__file__).parent / "processes"
PATIENCE_S = 60.0
JOB = "firing:record"
_numbers = itertools.count()


def do_nothing(*_: Any, **__: Any) -> None:
    """A job function that does nothing."""


@pytest.fixture
def namespace() -> str:
    """The name of a namespace that only this test uses."""
    return f"aps{next(_numbers)}"


@pytest.fixture(scope="session")
def shared_fake() -> Iterator[fakeredis.FakeRedis]:
    """One imitation of Redis for all tests, because loading its function library takes longer than a test."""
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="valkey")) as client:
        yield client


Opener = Callable[..., Any]


@pytest.fixture
def open_fake(shared_fake: fakeredis.FakeRedis, namespace: str) -> Iterator[Opener]:
    """Makes stores on the imitation of Redis, all in one namespace. A store that is not started has no threads."""
    made: list[RedisWheelJobStore] = []

    def make(**settings: Any) -> RedisWheelJobStore:
        store = RedisWheelJobStore(client=shared_fake, **{"namespace": namespace, **settings})
        made.append(store)
        return store

    yield make
    for store in made:
        store.shutdown()


@pytest.fixture
def open_real(real_server: TemporaryServer, namespace: str) -> Iterator[Opener]:
    """Makes stores on the session's server, all in one namespace."""
    made: list[RedisWheelJobStore] = []

    def make(**settings: Any) -> RedisWheelJobStore:
        store = RedisWheelJobStore(real_server.url, **{"namespace": namespace, **settings})
        made.append(store)
        return store

    yield make
    for store in made:
        store.shutdown()


@pytest.fixture(params=["memory", "fake", pytest.param("real", marks=pytest.mark.real)])
def store(request: pytest.FixtureRequest) -> Any:
    """A jobstore without a scheduler. The test runs once for each kind of jobstore."""
    if request.param == "memory":
        return WheelJobStore()
    return request.getfixturevalue(f"open_{request.param}")()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
def shared_store(request: pytest.FixtureRequest) -> Any:
    """A store that several processes can share, on the imitation or on the server."""
    return request.getfixturevalue(f"open_{request.param}")()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
def impatient_store(request: pytest.FixtureRequest) -> Any:
    """A shared store that quarantines a job at its first refusal."""
    opened = request.getfixturevalue(f"open_{request.param}")
    return opened(quarantine_refusals=1, quarantine_after_s=0)


Maker = Callable[..., Job]


@pytest.fixture(scope="session")
def make_job() -> Maker:
    """Makes jobs with the fields that a scheduler sets. A job without a run time is paused."""
    scheduler = BackgroundScheduler(timezone="UTC")

    def make(run_time: datetime | None = None, **options: Any) -> Job:
        given = {
            "func": do_nothing,
            "trigger": DateTrigger(run_time, "UTC"),
            "executor": "default",
            "args": (),
            "kwargs": {},
            "misfire_grace_time": 1,
            "coalesce": True,
            "max_instances": 1,
            "next_run_time": run_time,
            **options,
        }
        return Job(scheduler, **given)

    return make


class Firing(NamedTuple):
    """One run, as the job itself has recorded it."""

    occurrence_id: str
    pid: int
    token: int
    at_ms: int


class Runner:
    """A process that runs a scheduler."""

    def __init__(self, settings: dict[str, Any], judge_url: str) -> None:
        patched = ["-m", "gevent.monkey"] if settings["kind"] == "gevent" else []  # as users of gevent do
        self._process = subprocess.Popen(
            [sys.executable, *patched, str(FOLDER / "run_scheduler.py"), json.dumps(settings)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JUDGE_URL": judge_url, "PYTHONPATH": str(FOLDER)},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def stop(self) -> dict[str, Any]:
        """Stop the process with SIGTERM. Returns the report of the process."""
        self._process.send_signal(signal.SIGTERM)
        out, _ = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def kill(self) -> None:
        """Kill the process if it still runs. Idempotent."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Fleet:
    """A server for the jobs, a server for the records of runs, and the scheduler processes."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, kinds: Sequence[str]) -> None:
        self._stack = stack
        self._kinds = itertools.cycle(kinds)
        # each change is on disk before the server answers, so the server itself loses no job
        self.server: TemporaryServer = stack.enter_context(temporary_server(fsync="always"))
        judge = stack.enter_context(temporary_server())
        self.judge_url = judge.url
        self.judge: redis.Redis = stack.enter_context(redis.Redis.from_url(judge.url))
        monkeypatch.syspath_prepend(str(FOLDER))
        self.store = RedisWheelJobStore(self.server.url, allow=["firing"])
        self.producer = stack.enter_context(Producer(self.store, timezone="UTC"))
        self.runners: list[Runner] = []

    def run(
        self, count: int = 1, *, lease_s: float = 60.0, scheduler: dict[str, Any] | None = None, **options: Any
    ) -> list[Runner]:
        """Start schedulers, and wait until they are ready. `options` are settings of their stores."""
        settings = {
            "url": self.server.url,
            "store": {"lease_s": lease_s, **options},
            "scheduler": scheduler or {},
        }
        started = [Runner({**settings, "kind": next(self._kinds)}, self.judge_url) for _ in range(count)]
        self.runners += started
        for runner in started:
            self._stack.callback(runner.kill)
        for runner in started:
            runner.wait_ready()
        return started

    def popen(self, script: str, *args: str) -> subprocess.Popen[str]:
        """Start another program of the folder `processes`. It is killed at the end of the test."""
        process = subprocess.Popen(
            [sys.executable, str(FOLDER / script), *args],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JUDGE_URL": self.judge_url},
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def one_shots(
        self, count: int, *, in_s: float, apart_ms: float, func: str = JOB, args: Sequence[Any] = (), first: int = 0
    ) -> None:
        """Add `count` one-shot jobs with ids from `j<first>` on. The first is due in `in_s` seconds."""
        start = datetime.now(UTC) + timedelta(seconds=in_s)
        jobs = [
            self.producer.make(
                func, "date", args=args, id=f"j{first + n}", run_date=start + timedelta(milliseconds=n * apart_ms)
            )
            for n in range(count)
        ]
        assert self.producer.add_jobs(jobs) == []

    def fired(self) -> list[Firing]:
        rows: Any = self.judge.lrange("fired", 0, -1)
        return [Firing(row[0], *map(int, row[1:])) for row in (raw.decode().split() for raw in rows)]

    def jobs_fired(self) -> set[str]:
        return {firing.occurrence_id.partition(":")[0] for firing in self.fired()}

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the processes have made the condition true."""
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until_s, f"waited in vain until {what}; {len(self.fired())} firings"
            time.sleep(0.02)  # another process makes it true, without a signal

    def wait_empty(self) -> None:
        """Wait until no job waits or is in flight. After that no job can run twice."""
        self.wait_until(lambda: self.store.count() == 0 and self.store.in_flight() == [], "the store was empty")


OpenFleet = Callable[[Sequence[str]], Fleet]


@pytest.fixture
def open_fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenFleet]:
    """`open_fleet(kinds)` makes a fleet. Its processes get these kinds of schedulers in turn."""
    with ExitStack() as stack:
        yield lambda kinds: Fleet(stack, monkeypatch, kinds)
