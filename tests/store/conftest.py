"""Fixtures: backends for the tests of the store, each with a namespace that only one test uses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import fakeredis
import pytest

pytest.register_assert_rewrite("wheel_sched.testing.store_conformance")

from wheel_sched.store.redis.backend import client_for  # noqa: E402 - assertions are rewritten before the import
from wheel_sched.store.redis.round_trips import Dialect  # noqa: E402

if TYPE_CHECKING:
    import redis

    from tests.servers.valkey import TemporaryServer

_numbers = itertools.count()


@pytest.fixture
def namespace() -> str:
    """A namespace for one test, so that tests can share a server and its function library."""
    return f"t{next(_numbers)}"


@pytest.fixture(scope="session")
def shared_fake() -> Iterator[redis.Redis]:
    """One fakeredis client for all conformance tests, because loading the function library takes longer than a test."""
    with fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="valkey")) as client:
        yield client


@pytest.fixture(scope="session")
def shared_client(real_server: TemporaryServer) -> Iterator[redis.Redis]:
    """A client of the session's server, which also has the data of other tests."""
    with client_for(real_server.url) as client:
        yield client


@pytest.fixture
def dialect(namespace: str) -> Dialect:
    return Dialect(namespace)
