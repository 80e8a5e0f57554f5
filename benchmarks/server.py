"""The server that is measured: a real process with its data in a temporary folder.

The server has the settings of the embedded server (append-only file, synced each second), but it never rewrites the
file. A rewrite that began in one round could still run in the next round.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.processor import Processor
from tests.servers.valkey import temporary_server
from wheel_sched.store import DelayStore, open_store
from wheel_sched.store.redis.backend import client_for

if TYPE_CHECKING:
    import redis

NAMESPACE = "bench"
_SLOWLOG_LENGTH = 200_000  # more entries than a drain has commands


class Stalls(NamedTuple):
    """What the server recorded; all times are in ms.

    `turn`: the longest turn of its event loop. `script`: the longest script. `events`: the longest time of each event
    of its latency monitor (whole ms, from 1 up). `preemptions`: how often another process took its processor.
    """

    turn: float
    script: float
    events: dict[str, int]
    preemptions: int


class BenchServer:
    """A running server and one client of it. The function `bench_server` makes it."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self._processor = Processor(pid)
        self._preempted_before = 0
        self.client: redis.Redis = client_for(url)

    def empty_store(self) -> DelayStore:
        """Empty the server, and open a new store in it with the same client. This also loads the scripts."""
        self.client.flushall()
        return open_store(self.client, namespace=NAMESPACE)

    def used_memory(self) -> int:
        """How many bytes the server has allocated."""
        return int(self._info("memory")["used_memory"])

    def commands(self) -> dict[str, int]:
        """How often each command was called so far. INFO does not count, because this method calls it."""
        stats = self._info("commandstats")
        calls = {name.removeprefix("cmdstat_"): int(entry["calls"]) for name, entry in stats.items()}
        calls.pop("info", None)
        return calls

    def watch_stalls(self) -> None:
        """Let the server begin to record commands, turns of its event loop and latency events."""
        self.client.config_set("slowlog-max-len", _SLOWLOG_LENGTH)
        self.client.slowlog_reset()
        self.client.config_set("slowlog-log-slower-than", 0)
        self.client.config_set("latency-monitor-threshold", 1)
        self.client.latency_reset()
        self._preempted_before = self._processor.preemptions()
        self.client.config_resetstat()

    def stalls(self) -> Stalls:
        """End the recording, and return the record."""
        self.client.config_set("slowlog-log-slower-than", -1)
        turn_us = int(self._info("debug")["eventloop_duration_max"])
        preemptions = self._processor.preemptions() - self._preempted_before
        latest: Any = self.client.latency_latest()
        self.client.config_set("latency-monitor-threshold", 0)
        entries: Any = self.client.slowlog_get(_SLOWLOG_LENGTH)
        self.client.slowlog_reset()
        scripts_us = [
            entry["duration"] for entry in entries if entry["command"].upper().startswith((b"FCALL", b"EVAL"))
        ]
        events = {name.decode(): longest_ms for name, _, _, longest_ms, *_ in latest}
        return Stalls(turn_us / 1000, max(scripts_us) / 1000, events, preemptions)

    def label(self) -> str:
        """Name and version, e.g. `valkey 9.1.2`."""
        info = self._info("server")
        return f"valkey {info['valkey_version']}" if "valkey_version" in info else f"redis {info['redis_version']}"

    def _info(self, section: str) -> dict[str, Any]:
        info: dict[str, Any] = self.client.info(section)
        return info


@contextlib.contextmanager
def bench_server() -> Iterator[BenchServer]:
    """Yield a server that runs until the `with` block ends."""
    with temporary_server(extra={"auto-aof-rewrite-percentage": "0"}) as process:
        server = BenchServer(process.url, process.pid)
        try:
            yield server
        finally:
            server.client.close()


def surroundings(server: BenchServer, rounds: int) -> dict[str, Any]:
    """What the figures depend on: the versions of Python and server, and the numbers of processors and rounds."""
    return {
        "python": platform.python_version(),
        "server": server.label(),
        "cpus": os.cpu_count() or 1,
        "rounds": rounds,
    }
