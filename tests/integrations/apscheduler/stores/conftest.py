"""The job stores over what they stand on: memory, an imitation of Redis, and a real server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import fakeredis
import pytest
from apscheduler.job import Job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger
from wheel_sched_apscheduler import RedisWheelJobStore, WheelJobStore

from wheel_sched.testing.servers import TemporaryServer

_numbers = itertools.count()


def do_nothing(*_: Any, **__: Any) -> None:
    """A job."""


@pytest.fixture
def namespace() -> str:
    """A namespace of this test alone."""
    return f"aps{next(_numbers)}"


@pytest.fixture(scope="session")
def shared_fake() -> Iterator[fakeredis.FakeRedis]:
    """One imitation for all tests: loading the library costs more than a test."""
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="valkey")) as client:
        yield client


Opener = Callable[..., Any]


@pytest.fixture
def open_fake(shared_fake: fakeredis.FakeRedis, namespace: str) -> Iterator[Opener]:
    """Makes stores over the imitation, all over one namespace; without threads unless they are started."""
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
    """Makes stores over the session's server, all over one namespace."""
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
    """A store without a scheduler."""
    if request.param == "memory":
        return WheelJobStore()
    return request.getfixturevalue(f"open_{request.param}")()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
def shared_store(request: pytest.FixtureRequest) -> Any:
    """A store that processes can share."""
    return request.getfixturevalue(f"open_{request.param}")()


Maker = Callable[..., Job]


@pytest.fixture(scope="session")
def make_job() -> Maker:
    """Makes jobs as a scheduler does; paused without a run time."""
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
