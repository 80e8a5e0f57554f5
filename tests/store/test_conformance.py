"""The public conformance suite, run by every implementation the project ships."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.operations import Call
from wheel_sched.store.redis.asyncio_backend import AsyncRedisBackend, async_client_for
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.conversation import Dialect
from wheel_sched.testing.store_conformance import BackendMaker, StoreConformance

if TYPE_CHECKING:
    import redis

    from tests.servers.valkey import TemporaryServer


class TestMemory(StoreConformance):
    @pytest.fixture
    def make_backend(self) -> BackendMaker:
        return lambda shards: MemoryBackend(shards, clock="test")


class TestImitation(StoreConformance):
    """Functions on fakeredis."""

    @pytest.fixture
    def make_backend(self, shared_fake: redis.Redis, namespace: str) -> BackendMaker:
        return lambda shards: RedisBackend(shared_fake, Dialect(namespace))


@pytest.mark.slow
class TestImitationWithoutFunctions(StoreConformance):
    """EVALSHA on fakeredis, as for servers that refuse functions."""

    @pytest.fixture
    def make_backend(self, shared_fake: redis.Redis, namespace: str) -> BackendMaker:
        return lambda shards: RedisBackend(shared_fake, Dialect(namespace, functions=False))


@pytest.mark.real
class TestServer(StoreConformance):
    """Functions on a real server."""

    @pytest.fixture
    def make_backend(self, shared_client: redis.Redis, namespace: str) -> BackendMaker:
        return lambda shards: RedisBackend(shared_client, Dialect(namespace))


@pytest.mark.real
class TestServerWithoutFunctions(StoreConformance):
    """EVALSHA on a real server."""

    @pytest.fixture
    def make_backend(self, shared_client: redis.Redis, namespace: str) -> BackendMaker:
        return lambda shards: RedisBackend(shared_client, Dialect(namespace, functions=False))


class OnALoop(RedisBackend):
    """Every call through the asyncio backend, on a loop of its own; waiting is the blocking backend's alone."""

    def __init__(self, client: redis.Redis, url: str, namespace: str) -> None:
        super().__init__(client, Dialect(namespace))
        self._runner = asyncio.Runner()
        self._backend = AsyncRedisBackend(async_client_for(url), Dialect(namespace), owns_client=True)

    def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        return self._runner.run(self._backend.execute(calls, now_ms))

    def check_server(self) -> None:
        self._runner.run(self._backend.check_server())

    def close(self) -> None:
        self._runner.run(self._backend.close())
        self._runner.close()


@pytest.mark.real
class TestServerOnALoop(StoreConformance):
    """The asyncio backend on a real server."""

    @pytest.fixture
    def make_backend(self, shared_client: redis.Redis, real_server: TemporaryServer, namespace: str) -> BackendMaker:
        return lambda shards: OnALoop(shared_client, real_server.url, namespace)
