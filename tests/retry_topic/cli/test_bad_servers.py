"""Servers that are too old or need a password: each command fails with a readable error and writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from retry_topic import connect
from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.errors import StoreAuthError, StoreTooOld
from wheel_sched.store import open_async_store, open_store

pytestmark = pytest.mark.real

CREATING = (("publish", "orders", "x", "--delay", "1h", "--create"), ("publish", "orders", "x", "--create"))
COMMANDS = (
    *CREATING,
    ("list",),
    ("stats",),
    ("topics",),
    ("pause", "orders"),
    ("replay", "--all", "--yes"),
)


class Aged(socketserver.BaseRequestHandler):
    """A proxy of a real server that changes the version in its answers."""

    upstream: str
    say: Callable[[bytes], bytes]

    def handle(self) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(self.upstream)
            there = threading.Thread(target=self.pass_on, args=(self.request, server))
            there.start()
            self.pass_on(server, self.request)
            there.join()

    def pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either side went away
            while chunk := source.recv(1 << 20):
                target.sendall(chunk if source is self.request else type(self).say(chunk))
        for end in (source, target):
            with contextlib.suppress(OSError):  # already ended
                end.shutdown(socket.SHUT_RDWR)


# Replacements have equal lengths, so that RESP lengths stay correct. A server without a Valkey version is a Redis.
OLD: dict[str, Callable[[bytes], bytes]] = {
    "Valkey 7": lambda reply: re.sub(rb"valkey_version:\d", b"valkey_version:7", reply),
    "Redis 6": lambda reply: re.sub(
        rb"redis_version:\d", b"redis_version:6", reply.replace(b"valkey_ver", b"other__ver")
    ),
}


@pytest.fixture
def server() -> Iterator[TemporaryServer]:
    """A server that only this test uses. So every key on it comes from the test."""
    with temporary_server(tcp=True) as server:
        yield server


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, server: TemporaryServer) -> Iterator[tuple[str, str]]:
    """The address and the name of a server that reports an old version."""
    handler = type("OneOfAge", (Aged,), {"upstream": str(server.socket_path), "say": staticmethod(OLD[request.param])})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as relay:
        thread = threading.Thread(target=relay.serve_forever, args=(0.02,))
        thread.start()
        yield f"redis://127.0.0.1:{relay.server_address[1]}/0", request.param
        relay.shutdown()
        thread.join()


def keys(server: TemporaryServer, **login: Any) -> int:
    with redis.Redis.from_url(server.url, **login) as admin:
        return int(admin.dbsize()) + len(admin.function_list())


def test_a_server_that_is_too_old_is_refused_by_every_opening(server: TemporaryServer, old: tuple[str, str]) -> None:
    """If the server is too old, the error has its version and the needed version. No key and no function library is
    left on the server."""
    url, name = old
    openings: list[Callable[[str], Any]] = [open_store, connect, lambda url: asyncio.run(open_async_store(url))]
    for opening in openings:
        with pytest.raises(
            StoreTooOld, match=rf"{name}\..*needs Valkey 8 or Redis 7.*nothing was written"
        ) as error_text:
            opening(url)
        assert not error_text.value.transient
    assert keys(server) == 0


def test_a_server_that_is_too_old_is_refused_by_commands(
    server: TemporaryServer, old: tuple[str, str], cli_at: Any, wheel_sched: Any
) -> None:
    """Each command ends with exit code 1 and says what to upgrade. `doctor` reports a finding with the fix."""
    url, name = old
    for command in CREATING:
        error_text = cli_at(url)(*command, code=1).stderr
        assert name in error_text
        assert "upgrade the server" in error_text
    done = wheel_sched("--store", url, "serve", "billing")
    assert (done.returncode, b"upgrade the server" in done.stderr) == (1, True)
    for command in COMMANDS:
        cli_at(url)(*command, code=1)
    findings = {one["check"]: one for one in cli_at(url).json("doctor", code=1)["findings"]}
    assert findings["version"]["level"] == "problem"
    assert findings["version"]["fix"]
    assert keys(server) == 0


@pytest.mark.parametrize("login", ["", ":wrong-one@", "nobody:wrong-one@"], ids=["none", "password", "user"])
def test_a_locked_server_is_reported_by_every_command(
    server: TemporaryServer, cli_at: Any, wheel_sched: Any, login: str
) -> None:
    """Without the right password, each command says what to correct, shows no password and writes nothing. With the
    right password, a command works."""
    port = server.port
    with redis.Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", "right-one")
    url = f"redis://{login}127.0.0.1:{port}/0"
    with pytest.raises(StoreAuthError, match="correct the URL"):
        asyncio.run(open_async_store(url))
    for command in COMMANDS:
        error_text = cli_at(url)(*command, code=1).stderr
        assert "correct the URL" in error_text
        assert "-one" not in error_text
    for command in ("serve", "billing"), ("doctor",):
        done = wheel_sched("--store", url, *command)
        assert done.returncode in (1, 69), done.stderr
        assert b"correct the URL" in done.stdout + done.stderr
        assert b"-one" not in done.stdout + done.stderr
    assert keys(server, password="right-one") == 0
    cli_at(f"redis://:right-one@127.0.0.1:{port}/0")("publish", "orders", "x", "--delay", "1h", "--create")
    with redis.Redis.from_url(server.url, password="right-one") as admin:
        admin.config_set("requirepass", "")
