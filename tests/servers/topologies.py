"""Several temporary servers together: a Cluster of primaries, and a Sentinel that watches one server."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import redis

from tests.servers.valkey import TemporaryServer, free_port, temporary_server
from wheel_sched.store.embedded.binary import server_binary

SLOTS = 16_384
HALVES = ((0, 8191), (8192, 16383))
FORMING_SECONDS = 30.0


def ask(node: TemporaryServer, *command: str | int | None) -> bytes:
    """Send one command to one node and return its reply as bytes, not parsed."""
    with redis.Redis(port=node.port or 0) as client:
        client.response_callbacks.clear()
        reply: bytes = client.execute_command(*command)  # type: ignore[no-untyped-call, unused-ignore]
        return reply if isinstance(reply, bytes) else str(reply).encode()


def slot_ranges(primaries: int) -> list[tuple[int, int]]:
    """The first and the last hash slot of each primary; all primaries have about equally many slots."""
    starts = [SLOTS * number // primaries for number in range(primaries + 1)]
    return [(first, after - 1) for first, after in pairwise(starts)]


@contextmanager
def temporary_cluster(
    primaries: int = 2, extra: Mapping[str, str] = MappingProxyType({})
) -> Iterator[list[TemporaryServer]]:
    """Run a Cluster of primaries on loopback, each with the same share of the hash slots.

    Args:
        primaries: how many primaries. Defaults to 2, which have the slots `HALVES`.
        extra: more lines of each `valkey.conf`. Defaults to none.

    Raises:
        TimeoutError: the nodes did not form a cluster within 30 s.
    """
    with ExitStack() as stack:
        nodes: list[TemporaryServer] = []
        for first, last in slot_ranges(primaries):
            bus_port = free_port()
            bus = {"cluster-enabled": "yes", "cluster-port": str(bus_port), **extra}
            node = stack.enter_context(temporary_server(tcp=True, extra=bus))
            ask(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            if nodes:
                ask(nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, bus_port)
            nodes.append(node)
        until = time.monotonic() + FORMING_SECONDS
        while any(b"cluster_state:ok" not in ask(node, "CLUSTER", "INFO") for node in nodes):
            if time.monotonic() > until:
                raise TimeoutError("the cluster did not form")
            time.sleep(0.05)  # polls: the nodes send no event when the cluster is ready
        yield nodes


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
