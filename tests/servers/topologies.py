"""Several temporary servers together: a Cluster of two primaries, and a Sentinel that watches one server."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import redis

from tests.servers.valkey import TemporaryServer, free_port, temporary_server
from wheel_sched.store.embedded.binary import server_binary

HALVES = ((0, 8191), (8192, 16383))
FORMING_SECONDS = 30.0


def ask(node: TemporaryServer, *command: str | int | None) -> bytes:
    """Send one command to one node and return its reply as bytes, not parsed."""
    with redis.Redis(port=node.port or 0) as client:
        client.response_callbacks.clear()
        reply: bytes = client.execute_command(*command)  # type: ignore[no-untyped-call, unused-ignore]
        return reply if isinstance(reply, bytes) else str(reply).encode()


@contextmanager
def temporary_cluster() -> Iterator[list[TemporaryServer]]:
    """Run a Cluster of two primaries on loopback, each with half of the hash slots.

    Raises:
        TimeoutError: the nodes did not form a cluster within 30 s.
    """
    with ExitStack() as stack:
        nodes = []
        for first, last in HALVES:
            bus = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
            node = stack.enter_context(temporary_server(tcp=True, extra=bus))
            ask(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            nodes.append((node, bus["cluster-port"]))
        (one, _), (two, bus_port) = nodes
        ask(one, "CLUSTER", "MEET", "127.0.0.1", two.port, bus_port)
        until = time.monotonic() + FORMING_SECONDS
        while any(b"cluster_state:ok" not in ask(node, "CLUSTER", "INFO") for node in (one, two)):
            if time.monotonic() > until:
                raise TimeoutError("the cluster did not form")
            time.sleep(0.05)  # polls: the nodes send no event when the cluster is ready
        yield [one, two]


@contextmanager
def temporary_sentinel(primary: TemporaryServer, folder: Path) -> Iterator[int]:
    """Run a Sentinel that watches `primary` under the name "main", and yield the Sentinel's port."""
    port = free_port()
    configuration = folder / "sentinel.conf"
    configuration.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary.port} 1\n")
    process = subprocess.Popen([server_binary(), configuration, "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:
            until = time.monotonic() + FORMING_SECONDS
            while time.monotonic() < until:
                with suppress(redis.ConnectionError):
                    if client.ping():
                        break
                time.sleep(0.02)  # polls: the process sends no event when it is ready
        yield port
    finally:
        process.kill()
        process.wait()
