"""Each fault that the proxy can make, in front of a real server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.valkey import TemporaryServer, temporary_server


@pytest.fixture
def proxy(redis_url: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(redis_url) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultyProxy) -> Iterator[redis.Redis]:
    """A client that sends each command once, with a timeout of 0.3 s."""
    with redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0), socket_timeout=0.3) as client:
        client.ping()
        yield client


def test_it_passes_everything_on_until_told_otherwise(client: redis.Redis, proxy: FaultyProxy) -> None:
    """Without a fault, large values arrive complete in both directions."""
    value = bytes(range(256)) * 4096
    client.set("k", value)
    assert client.get("k") == value
    assert (proxy.counts.connections, proxy.counts.dropped_replies, proxy.counts.swallowed_bytes) == (1, 0, 0)
    assert "passing" in repr(proxy)


def test_a_dropped_reply_is_of_a_command_that_was_executed(
    client: redis.Redis, redis_client: redis.Redis, proxy: FaultyProxy
) -> None:
    """If the proxy drops a reply, the client's connection fails, although the server has executed the command."""
    proxy.drop_next_reply()
    assert "armed=1" in repr(proxy)
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert redis_client.get("n") == b"1"
    assert (proxy.counts.dropped_replies, proxy.counts.dropped_reply_bytes) == (1, len(b":1\r\n"))
    assert client.incr("n") == 2


def test_a_client_that_repeats_makes_a_dropped_reply_a_second_execution(
    redis_client: redis.Redis, proxy: FaultyProxy
) -> None:
    """If a reply is lost, a client that repeats the command increments twice. By default, redis-py repeats up to
    ten times."""
    with redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 1)) as client:
        client.ping()
        proxy.drop_next_reply(b"INCR")
        assert client.incr("n") == 2


def test_a_dropped_pipeline_was_executed_to_its_end(
    client: redis.Redis, redis_client: redis.Redis, proxy: FaultyProxy
) -> None:
    """If the reply to a pipeline of 5,000 commands is dropped, the server has executed all of them."""
    pipeline = client.pipeline(transaction=False)
    for n in range(5000):
        pipeline.rpush("list", b"%d" % n * 20)
    proxy.drop_next_reply()
    with pytest.raises(redis.ConnectionError):
        pipeline.execute()
    until_s = time.monotonic() + 10
    while redis_client.llen("list") < 5000 and time.monotonic() < until_s:
        time.sleep(0.01)  # the server may still execute the last of them
    assert redis_client.llen("list") == 5000
    assert proxy.counts.dropped_replies == 1


def test_the_reply_to_lose_may_be_named(client: redis.Redis, redis_client: redis.Redis, proxy: FaultyProxy) -> None:
    """`drop_next_reply` with bytes loses only the reply to a request that contains them. Two calls lose two
    replies, in order."""
    proxy.drop_next_reply(b"SADD")
    proxy.drop_next_reply(b"SREM")
    assert client.incr("n") == 1
    with pytest.raises(redis.ConnectionError):
        client.sadd("s", "a", "b")
    assert client.incr("n") == 2
    with pytest.raises(redis.ConnectionError):
        client.srem("s", "a")
    assert redis_client.smembers("s") == {b"b"}
    assert proxy.counts.dropped_replies == 2


def test_a_blackhole_swallows_and_leaves_the_connection_open(
    client: redis.Redis, redis_client: redis.Redis, proxy: FaultyProxy
) -> None:
    """In a blackhole, old and new connections are open, but no byte arrives, so the client can only time out."""
    proxy.blackhole()
    assert "silent" in repr(proxy)
    with pytest.raises(redis.TimeoutError):
        client.incr("n")
    with pytest.raises(redis.TimeoutError):
        client.incr("n")
    assert redis_client.get("n") is None
    assert proxy.counts.swallowed_bytes > 0
    assert proxy.counts.connections == 2


def test_a_blackhole_swallows_a_reply_under_way(
    client: redis.Redis, redis_client: redis.Redis, proxy: FaultyProxy
) -> None:
    """A blackhole begins while a command blocks at the server. The server executes the command, and its reply is
    lost."""
    outcome: list[BaseException] = []

    def block() -> None:
        try:
            client.blpop(["list"], timeout=5)
        except redis.RedisError as error:
            outcome.append(error)

    waiter = threading.Thread(target=block)
    waiter.start()
    while not redis_client.info("clients")["blocked_clients"]:
        time.sleep(0.005)  # the server does not say when a client begins to block
    proxy.blackhole()
    redis_client.rpush("list", "x")
    waiter.join()
    assert isinstance(outcome[0], redis.TimeoutError)
    assert redis_client.llen("list") == 0, "the element was popped for a client that never saw it"
    assert proxy.counts.swallowed_bytes > 0


def test_heal_closes_what_lost_bytes_and_passes_the_rest(proxy: FaultyProxy, redis_url: str) -> None:
    """`heal` closes a connection that has lost bytes. A connection that was idle during the fault still works."""
    with (
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as torn,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as quiet,
    ):
        for connection in (torn, quiet):
            connection.sendall(b"PING\r\n")
            assert connection.recv(100) == b"+PONG\r\n"
        proxy.blackhole()
        torn.sendall(b"PING\r\n")
        while not proxy.counts.swallowed_bytes:
            time.sleep(0.001)  # until the proxy's thread has read them
        proxy.heal()
        assert torn.recv(100) == b""
        quiet.sendall(b"PING\r\n")
        assert quiet.recv(100) == b"+PONG\r\n"
    assert "passing" in repr(proxy)


def test_heal_disarms(client: redis.Redis, proxy: FaultyProxy) -> None:
    """`heal` cancels a call of `drop_next_reply` that has had no effect yet."""
    proxy.drop_next_reply(b"INCR")
    proxy.heal()
    assert client.incr("n") == 1


def test_replies_come_later_by_the_delay(client: redis.Redis, proxy: FaultyProxy) -> None:
    """`delay_ms` delays replies. It can be changed while connections are open."""
    proxy.delay_ms = 80
    begun_s = time.perf_counter()
    client.ping()
    assert time.perf_counter() - begun_s >= 0.08
    proxy.delay_ms = 0
    client.ping()


def test_cut_closes_open_connections_and_accepts_new_ones(proxy: FaultyProxy) -> None:
    """`cut` closes open connections, and new ones work.

    The test uses raw sockets, because redis-py replaces a closed idle connection by a new one.
    """
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as before:
        before.sendall(b"PING\r\n")
        assert before.recv(100) == b"+PONG\r\n"
        proxy.cut()
        assert before.recv(100) == b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as after:
        after.sendall(b"PING\r\n")
        assert after.recv(100) == b"+PONG\r\n"


@pytest.mark.real
def test_it_stands_in_front_of_a_tcp_port_and_outlives_its_server() -> None:
    """While the server is down, the proxy closes client connections. After the server's restart the proxy forwards
    again."""
    with (
        temporary_server(tcp=True) as server,
        FaultyProxy(server.tcp_url) as proxy,
        redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0)) as client,
    ):
        client.set("k", "v")
        server.sigkill()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                client.get("k")
        server.restart()
        assert client.get("k") == b"v"


def test_close_ends_every_thread_and_twice_is_once(real_server: TemporaryServer) -> None:
    """`close` ends all threads, even while clients are connected and faults are active. A second call has no effect."""
    before = threading.active_count()
    modes: list[Callable[[FaultyProxy], None]] = [FaultyProxy.blackhole, FaultyProxy.drop_next_reply, FaultyProxy.cut]
    for mode in modes:
        proxy = FaultyProxy(real_server.url)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as connection:
            mode(proxy)
            connection.sendall(b"PING\r\n")
            proxy.close()
            proxy.close()
            with pytest.raises(ConnectionError):
                socket.create_connection(("127.0.0.1", proxy.port), timeout=5).close()
    assert threading.active_count() == before
