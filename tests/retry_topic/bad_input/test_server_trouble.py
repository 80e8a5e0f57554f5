"""The server is full, read-only, locked or unreachable while a service runs: the service waits and loses nothing."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import redis

from retry_topic import RetryPolicy
from retry_topic.message.headers import read
from tests.servers.valkey import TemporaryServer, free_port, temporary_server
from wheel_sched.errors import (
    BrokerError,
    StoreAuthError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from conftest import Bench, Handler

pytestmark = [pytest.mark.real, pytest.mark.slow]

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]
EACH = 40  # messages before the trouble, and as many after it; each fails once
IDLE_MS = 2_000  # records of an interrupted read come again after this time


@dataclass(frozen=True, slots=True)
class Trouble:
    """How a test begins and ends one kind of server failure, and which errors the store and the broker then raise."""

    begin: Callable[[TemporaryServer], Any]
    end: Callable[[TemporaryServer], Any]
    error: type[StoreError]
    store_says: str
    broker_says: str


def tell(server: TemporaryServer, *command: object, password: str | None = None) -> None:
    """Send a command to the server as an administrator."""
    with redis.Redis.from_url(server.url, password=password) as admin:
        admin.execute_command(*command)


def lock(server: TemporaryServer) -> None:
    """Set a password and disconnect all clients."""
    tell(server, "CONFIG", "SET", "requirepass", "secret")
    with contextlib.suppress(redis.RedisError):
        tell(server, "CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "NO", password="secret")


TROUBLES = {
    "full": Trouble(
        lambda server: tell(server, "CONFIG", "SET", "maxmemory", 1),
        lambda server: tell(server, "CONFIG", "SET", "maxmemory", 0),
        StoreFull,
        "raise maxmemory",
        "maxmemory",
    ),
    "read-only": Trouble(
        lambda server: tell(server, "REPLICAOF", "127.0.0.1", free_port()),
        lambda server: tell(server, "REPLICAOF", "NO", "ONE"),
        StoreReadOnly,
        "connect to the primary",
        "connect to the primary",
    ),
    "locked": Trouble(
        lock,
        lambda server: tell(server, "CONFIG", "SET", "requirepass", "", password="secret"),
        StoreAuthError,
        "login",
        "credentials",
    ),
    "away": Trouble(TemporaryServer.sigkill, TemporaryServer.restart, StoreUnavailable, "repeat", "nothing was sent"),
}


@pytest.fixture
def server() -> Iterator[TemporaryServer]:
    """A server of this test only. It loses no acknowledged write when it is killed."""
    with temporary_server(fsync="always") as server:
        yield server


@pytest.fixture
def bench(server: TemporaryServer, bench_on: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench with store and broker on `server`. After an error, its threads try again in 0.1 seconds."""
    monkeypatch.setattr("retry_topic.consumer.consumer.AWAY_S", (0.1,))
    monkeypatch.setattr("retry_topic.intake.worker._AWAY_S", (0.1,))
    monkeypatch.setattr("retry_topic.consumer.settling.AWAY_S", (0.1,))
    return bench_on(server.url)


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_service_waits_a_servers_trouble_out(
    bench: Bench, server: TemporaryServer, handler: Handlers, policy: Policy, trouble: Trouble
) -> None:
    """Messages from before, during and after the failure are each handled twice (one retry), and none is dead.

    A publisher gets an error that names the failure, and may repeat its call under the same id.
    """
    handle = handler(lambda message: None if read(message.headers).attempt else _raise())
    bench.serve(policy(base_ms=500), idle_ms=IDLE_MS)
    consumer = bench.consume(handle, idle_ms=IDLE_MS, concurrency=8)
    bench.publish(*(b"before %d" % n for n in range(EACH)))
    bench.until(lambda: bench.connection.store.counts().happened("accepted") > 0)
    trouble.begin(server)
    with pytest.raises(trouble.error, match=trouble.store_says) as caught:
        bench.connection.publish("orders", b"later", delay=0.5, id="later")
    assert caught.value.transient == (trouble.error is not StoreAuthError)
    with pytest.raises(BrokerError, match=trouble.broker_says):
        bench.connection.publish("orders", b"now")
    trouble.end(server)
    bench.connection.publish("orders", b"later", delay=0.5, id="later")
    bench.publish(*(b"after %d" % n for n in range(EACH)))
    sent = {b"later", *(b"%s %d" % (when, n) for when in (b"before", b"after") for n in range(EACH))}
    bench.until(
        lambda: consumer.stats.acknowledged >= len(sent), lambda: (consumer.stats, bench.connection.store.counts())
    )
    bench.quiet(consumer)
    assert Counter(handle.values) == dict.fromkeys(sent, 2)
    assert bench.letters() == []


def _raise() -> None:
    raise ValueError("first")
