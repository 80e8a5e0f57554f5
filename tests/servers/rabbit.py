"""A temporary RabbitMQ node for tests, on loopback, with its own name, cookie, data folder and ports.

    with temporary_rabbit() as rabbit:
        Connection(rabbit.url)
        rabbit.sigkill()
        rabbit.restart()  # the same folder, so durable queues and persistent messages survive

The node needs the system's `rabbitmq-server` (Debian, Ubuntu: apt-get install rabbitmq-server). A start takes about ten
seconds. The node neither uses nor changes a node that the system runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers.child_supervisor import SupervisedChild
from tests.servers.valkey import free_port
from wheel_sched.errors import ConfigError

START_TIMEOUT_S = 90.0
POLL_S = 0.05
_PLACES = (
    "/usr/lib/rabbitmq/bin",
    "/opt/homebrew/sbin",
    "/usr/local/sbin",
)  # Debian's wrapper on PATH changes the user
_HELLO = b"AMQP\x00\x00\x09\x01"


class TemporaryRabbit:
    """A node that a test can kill and restart. The node ends with the test's process. `temporary_rabbit` makes one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._epmd_port = free_port()
        self._processes: list[SupervisedChild] = []
        (folder / "plugins").write_text("[].\n")
        (folder / "rabbit.conf").write_text("loopback_users.guest = true\n")
        self._env = {
            **os.environ,
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"wheel{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "db"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbit.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        self.restart()

    @property
    def url(self) -> str:
        """The address of the node; a restart does not change it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def restart(self) -> None:
        """Kill the node if it runs, start it with the same folder and port, and wait until it answers.

        Raises:
            ConfigError: RabbitMQ is not installed, or the node does not start. The error has the node's output.
        """
        self.sigkill()
        self._run(_program("epmd"), "-port", str(self._epmd_port), "-address", "127.0.0.1")
        server = self._run(_program("rabbitmq-server"))
        until_s = time.monotonic() + START_TIMEOUT_S
        while not self._talks():
            if server.poll() is not None or time.monotonic() >= until_s:
                self.sigkill()
                raise ConfigError(f"RabbitMQ did not start; it wrote: {(self.folder / 'out').read_text()[-2000:]}")
            time.sleep(POLL_S)

    def sigkill(self) -> None:
        """Kill the node as a crash would, and wait for its end. Idempotent."""
        while self._processes:
            self._processes.pop().kill()

    def _run(self, *command: str) -> SupervisedChild:
        process = SupervisedChild(command, env=self._env, out=self.folder / "out")
        self._processes.append(process)
        return process

    def _talks(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as sock:
                sock.sendall(_HELLO)
                return sock.recv(1) == b"\x01"
        except OSError:
            return False

    def __repr__(self) -> str:
        return f"<TemporaryRabbit port={self.port} {'alive' if self._processes else 'down'}>"


@contextlib.contextmanager
def temporary_rabbit() -> Iterator[TemporaryRabbit]:
    """Run a node with a new temporary folder. The end of the block removes both.

    Raises:
        ConfigError: RabbitMQ is not installed, or the node does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="wheel-sched-rabbit-"))
    try:
        rabbit = TemporaryRabbit(folder)
        try:
            yield rabbit
        finally:
            rabbit.sigkill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([*_PLACES, os.environ.get("PATH", "")]))
    if found is None:
        raise ConfigError(
            f"expected {name} to be installed (Debian, Ubuntu: apt-get install rabbitmq-server); nothing was started"
        )
    return found
