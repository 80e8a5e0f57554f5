"""Fixtures that run dispatcher processes over real servers, and check which messages arrived, how often and when.

Each test has its own servers. Dispatchers publish messages to a stream. The id of a stream entry is the time at which
the receiving server got the message. So no test relies on a dispatcher's own report of early, lost or doubled messages.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Item
from wheel_sched.store.push.push_form import encode_push

SCRIPT = Path(__file__).parent / "processes" / "dispatch.py"
PATIENCE_S = 30.0

logger = logging.getLogger("failure")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition that other processes bring about. `what` describes it in the error."""
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain until {what}"
        time.sleep(0.002)  # another process makes it true, without a signal


class Process:
    """One process that runs processes/dispatch.py.

    If the test asks for it, the process writes a file at a named point of its work and sends itself a signal.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.marker = Path(settings["marker"])
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(settings)], stdout=subprocess.PIPE, text=True
        )

    def wait_ready(self) -> Process:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def wait_reached(self) -> str:
        """Wait until the process has reached the point that the test named. Returns the text of the process's file."""
        wait_until(lambda: self.marker.exists() and self.marker.read_text() != "", "the point was reached")
        return self.marker.read_text()

    def wait_killed(self) -> None:
        assert self._process.wait(PATIENCE_S) == -signal.SIGKILL

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> dict[str, Any]:
        """Let the process finish its batches and end. Returns its counters."""
        self._process.send_signal(signal.SIGTERM)
        out, _ = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0
        stats: dict[str, Any] = json.loads(out.splitlines()[-1])
        return stats

    def kill(self) -> None:
        """Kill the process if it still runs. Idempotent."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Arrival(NamedTuple):
    """One message that arrived at the receiver, when it was due, when it arrived, and who sent it."""

    id: str
    due_ms: int
    at_ms: int
    by: str


class Stage:
    """The servers, the store and the dispatcher processes of one test.

    Args:
        folder: processes write files into it when they reach a named point; see `Process`.
        server: the server of the store.
        receiver: the server to which messages are published. It may be `server`, unless the test kills that one.
        durability: the durability level of the store.
    """

    def __init__(self, folder: Path, server: TemporaryServer, receiver: TemporaryServer, durability: str) -> None:
        self.server = server
        self._folder = folder
        self._receiver = receiver
        self._durability = durability
        self._processes: list[Process] = []
        self.store: DelayStore = open_store(server.url, durability=durability)
        self.client = redis.Redis.from_url(receiver.url, decode_responses=True)

    def start(self, name: str = "d", **settings: Any) -> Process:
        """Start a dispatcher process; see processes/dispatch.py for its settings."""
        process = Process(
            {
                "url": self.server.url,
                "receiver": self._receiver.url,
                "name": name,
                "durability": self._durability,
                "marker": str(self._folder / f"{name}.{len(self._processes)}"),
                **settings,
            }
        )
        self._processes.append(process)
        return process

    def schedule(self, count: int, in_ms: int = 0, *, push: bool = False) -> list[str]:
        """Store `count` messages that become due in `in_ms` ms. Returns their ids."""
        due_ms = self.counts().now_us // 1000 + in_ms
        ids = [f"m{n}" for n in range(count)]
        fields = [[b"id", i.encode(), b"due", b"%d" % due_ms] for i in ids]
        items = [
            Item(i, due_ms, encode_push("S", "out", field) if push else b"", "out")
            for i, field in zip(ids, fields, strict=True)
        ]
        assert self.store.schedule(items).accepted == count
        return ids

    def counts(self) -> Counts:
        return self.store.counts()

    def wait_in_flight(self, count: int) -> None:
        """Wait until `count` messages are in flight, because the server may still execute calls of a killed process."""
        wait_until(lambda: self.counts().sizes["leased"] == count, f"{count} were in flight")

    def wait_drained(self) -> None:
        """Wait until no message waits or is in flight."""
        wait_until(lambda: self.counts().sizes["body"] == 0, "the store was empty")

    def arrivals(self) -> list[Arrival]:
        """All messages that arrived, in any of the streams, in order of arrival."""
        arrivals = []
        for stream in self.client.scan_iter("*out", _type="stream"):
            entries: Any = self.client.xrange(stream)
            by = stream.removesuffix("out").removesuffix(":")
            for entry, fields in entries:
                at_ms = int(entry.split("-")[0])
                arrivals.append(Arrival(fields["id"], int(fields["due"]), at_ms, fields.get("by", by)))
        return sorted(arrivals, key=lambda arrival: arrival.at_ms)

    def record(self, name: str, value: object) -> None:
        """Log a figure; `pytest -m slow --log-cli-level=INFO` shows it."""
        logger.info("%s: %s", name, value)

    def judged(self, expected: list[str], most_duplicates: int) -> list[Arrival]:
        """Return all arrived messages. Fails if one is lost, unknown or early, or if there are more than
        `most_duplicates` doubled messages."""
        arrivals = self.arrivals()
        times = Counter(arrival.id for arrival in arrivals)
        doubled = len(arrivals) - len(times)
        self.record("duplicates", doubled)
        assert set(expected) - set(times) == set(), "lost"
        assert set(times) - set(expected) == set(), "strange"
        assert [arrival for arrival in arrivals if arrival.at_ms < arrival.due_ms] == [], "early"
        assert doubled <= most_duplicates
        return arrivals

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self.client.close()
        self.store.close()


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Return a function that makes a `Stage`.

    Its argument `fsync` says when the store's server syncs its append-only file. With `apart`, messages are published
    to a second server.
    """
    with ExitStack() as stack:

        def make(*, fsync: Any = "everysec", durability: str = "everysec", apart: bool = False) -> Stage:
            server = stack.enter_context(temporary_server(fsync=fsync))
            receiver = stack.enter_context(temporary_server()) if apart else server
            stage = Stage(tmp_path, server, receiver, durability)
            stack.callback(stage.close)
            return stage

        yield make


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    """A `Stage` with one server. It holds the store, and messages are published to it."""
    return make_stage()
