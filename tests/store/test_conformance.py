"""Runs the public conformance suite against every store that the project ships."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.testing.store_conformance import BackendMaker, Benches, StoreConformance
from wheel_sched.testing.store_conformance.claiming import ClaimingCases
from wheel_sched.testing.store_conformance.scheduling import SchedulingCases
from wheel_sched.testing.store_conformance.settling import SettlingCases

if TYPE_CHECKING:
    import redis


class TestMemory(StoreConformance):
    @pytest.fixture
    def make_backend(self) -> BackendMaker:
        return lambda shards: MemoryBackend(shards, clock="test")


class TestImitation(StoreConformance):
    """The store calls its Lua scripts as functions of the server (FCALL), on fakeredis."""

    @pytest.fixture
    def make_backend(self, shared_fake: redis.Redis, namespace: str) -> BackendMaker:
        return lambda shards: RedisBackend(shared_fake, Dialect(namespace))


@pytest.mark.slow
class TestImitationWithoutFunctions(Benches, SchedulingCases, ClaimingCases, SettlingCases):
    """The store calls its Lua scripts by EVALSHA, on fakeredis, as on servers that refuse functions.

    Only how a script is called differs from `TestImitation`, and all cases run by EVALSHA on a real server below.
    fakeredis compiles the whole script again at each call, so that all cases would take half a minute of a processor.
    """

    @pytest.fixture
    def make_backend(self, shared_fake: redis.Redis, namespace: str) -> BackendMaker:
        return lambda shards: RedisBackend(shared_fake, Dialect(namespace, functions=False))


@pytest.mark.real
class TestServer(StoreConformance):
    """The store calls its Lua scripts as functions of the server (FCALL), on a real server."""

    @pytest.fixture
    def make_backend(self, shared_client: redis.Redis, namespace: str) -> BackendMaker:
        return lambda shards: RedisBackend(shared_client, Dialect(namespace))


@pytest.mark.real
class TestServerWithoutFunctions(StoreConformance):
    """The store calls its Lua scripts by EVALSHA, on a real server."""

    @pytest.fixture
    def make_backend(self, shared_client: redis.Redis, namespace: str) -> BackendMaker:
        return lambda shards: RedisBackend(shared_client, Dialect(namespace, functions=False))
