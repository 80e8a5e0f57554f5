"""The temporary Valkey servers that other tests use."""

from __future__ import annotations

import pytest
import redis

from tests.servers.valkey import temporary_server
from wheel_sched.errors import ConfigError

pytestmark = pytest.mark.real


def test_it_runs_until_the_end_of_the_block() -> None:
    """At the end of the block the process and the folder are gone."""
    with temporary_server() as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        assert server.alive
    assert not server.alive
    assert not server.folder.exists()


def test_a_killed_server_comes_back_with_its_data_under_the_same_url() -> None:
    """`sigkill` kills the process, and `restart` starts it with the same data and URL."""
    with temporary_server(tcp=True) as server, redis.Redis.from_url(server.url) as client:
        client.set("k", "v")
        url, pid = server.url, server.pid
        server.sigkill()
        assert not server.alive
        assert "down" in repr(server)
        server.restart()
        assert (server.url, server.pid == pid) == (url, False)
        with redis.Redis.from_url(server.tcp_url) as again:
            assert again.get("k") == b"v"


def test_restart_also_stops_a_server_that_runs() -> None:
    """`restart` of a running server ends its process and starts another."""
    with temporary_server() as server:
        pid = server.pid
        server.restart()
        assert server.alive
        assert server.pid != pid
        server.stop()
        server.stop()
        assert not server.alive


def test_a_replica_follows_its_primary() -> None:
    """A replica refuses writes and has every write that it has confirmed to the primary."""
    with (
        temporary_server(tcp=True) as primary,
        temporary_server(replica_of=primary) as replica,
        redis.Redis.from_url(primary.url) as writer,
        redis.Redis.from_url(replica.url) as reader,
    ):
        writer.set("k", "v")
        assert writer.wait(1, 5000) == 1
        assert reader.get("k") == b"v"
        with pytest.raises(redis.ReadOnlyError):
            reader.set("k", "w")


def test_a_port_must_be_asked_for() -> None:
    """Without `tcp=True`, `tcp_url` raises an error, and no replica can follow the server."""
    with temporary_server() as server:
        with pytest.raises(ConfigError, match="tcp=True"):
            _ = server.tcp_url
        with pytest.raises(ConfigError, match="replica_of"), temporary_server(replica_of=server):
            pass
