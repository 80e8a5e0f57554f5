"""Servers for the whole suite and Hypothesis' profiles.

A test that asks for `real_server`, `redis_url` or `redis_client` is marked `real`; one that starts its own server
carries the mark itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, settings
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from wheel_sched.testing.servers import TemporaryServer

# No deadline: the machine is shared, and a slow example is no wrong example.
settings.register_profile("dev", max_examples=60, deadline=None)
settings.register_profile("ci", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "real_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def real_server() -> Iterator[TemporaryServer]:
    """One server for the session (for each worker under xdist). Don't kill it: `temporary_server` is for that."""
    from wheel_sched.testing.servers import temporary_server

    with temporary_server() as server:
        yield server


@pytest.fixture
def redis_url(real_server: TemporaryServer) -> str:
    """The session server's address, emptied of data, functions and scripts."""
    with redis.Redis.from_url(real_server.url) as client:
        client.flushall()
        client.function_flush()
        client.script_flush()
    return real_server.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the emptied server that sends every command once: redis-py would repeat it after a lost reply."""
    with redis.Redis.from_url(redis_url, retry=Retry(NoBackoff(), 0)) as client:
        yield client


@pytest.fixture
def fake_redis() -> Iterator[redis.Redis]:
    """A fresh in-process imitation with Lua, for tests that need no process."""
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="valkey")) as client:
        yield client
