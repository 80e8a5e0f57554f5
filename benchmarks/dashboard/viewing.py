"""Visits a running dashboard: asks for each page, watches live pages, and measures what that costs the server."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

import wheel_sched.dashboard
from benchmarks.messages import NullPublisher, ids, in_batches, plain_items
from benchmarks.outside import Outside, ask_the_time
from benchmarks.rounds import percentile
from benchmarks.server import NAMESPACE, BenchServer
from wheel_sched.dispatcher import Dispatcher
from wheel_sched.store import DelayStore, open_store

ASSETS = [
    path
    for path in (Path(wheel_sched.dashboard.__file__).parent / "assets").iterdir()
    if path.suffix in {".css", ".js", ".svg"}
]
_LINK = re.compile(r'<a [^>]*href="(/[^"#]*)"')
_READY_S, _GIVE_UP_S = 30.0, 120.0
_DEEPER = 3  # from each listing, this many linked pages are visited, such as the page of an item or of a group
_PINGS = 300


class Visits(NamedTuple):
    """What visits showed.

    `pages`: for each page the median time to the first byte, in ms. `stall_ms`: the longest stall of another client of
    the server meanwhile. `ping_ms`: 99 of 100 bare PINGs took at most this long. `took_s`: how long the visits took.
    """

    pages: dict[str, float]
    stall_ms: float
    ping_ms: float
    took_s: float


@contextlib.contextmanager
def running_dashboard(url: str) -> Iterator[str]:
    """Run `wheel-sched dashboard` in a process of its own. Yields `host:port`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "wheel_sched", "--store", url, "--namespace", NAMESPACE]
    with subprocess.Popen(
        [*command, "dashboard", "--listen", address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            give_up = time.monotonic() + _READY_S
            while not _answers(address):
                assert process.poll() is None, "the dashboard ended"
                assert time.monotonic() < give_up, "the dashboard did not start"
                time.sleep(0.05)  # the dashboard does not signal that it is ready
            yield address
        finally:
            process.terminate()


def _answers(address: str) -> bool:
    try:
        return _get(address, "/")[0] == 200
    except OSError:
        return False


def _get(address: str, path: str) -> tuple[int, float, str]:
    """The status, the ms to the first byte of the answer, and the body."""
    connection = http.client.HTTPConnection(address, timeout=_READY_S)
    connection.connect()
    begun = time.perf_counter()
    connection.request("GET", path, headers={"host": "localhost"})
    answer = connection.getresponse()  # reads only the first lines of the answer
    first_ms = (time.perf_counter() - begun) * 1000
    body = answer.read().decode()
    connection.close()
    return answer.status, first_ms, body


def visited(server: BenchServer, idle: BenchServer, address: str, visits: int) -> Visits:
    """Visit each page that the navigation lists, and a few pages that each of them links to."""
    paths = _pages(address)
    asker = Outside(ask_the_time, server.url, server.pid, idle.url)
    took: dict[str, list[float]] = {path: [] for path in paths}
    begun_s = time.monotonic()
    for _ in range(visits):
        for path in paths:
            status, first_ms, _ = _get(address, path)
            assert status == 200, f"{path} answered {status}"
            took[path].append(first_ms)
    took_s = time.monotonic() - begun_s
    asker.stop()
    stall_ms = asker.result().stall
    pings = []
    for _ in range(_PINGS):
        begun = time.perf_counter()
        server.client.ping()
        pings.append((time.perf_counter() - begun) * 1000)
    pages = {urlsplit(path).path: median(found) for path, found in took.items()}
    return Visits(pages, round(stall_ms, 3), round(percentile(pings, 99), 3), took_s)


def quiet_stall_ms(server: BenchServer, idle: BenchServer, seconds: float) -> float:
    """The longest stall of another client of the server in `seconds`, while nobody asks for a page."""
    asker = Outside(ask_the_time, server.url, server.pid, idle.url)
    time.sleep(seconds)
    asker.stop()
    stall_ms: float = asker.result().stall
    return round(stall_ms, 3)


def _pages(address: str) -> list[str]:
    """The paths of the pages: those of the navigation, and up to three further ones that each of them links to."""
    _, _, first = _get(address, "/")
    listed = list(dict.fromkeys(_LINK.findall(first)))
    found = dict.fromkeys(listed)
    for path in listed:
        behind = [link for link in _LINK.findall(_get(address, path)[2]) if urlsplit(link).path not in found]
        found |= dict.fromkeys(urlsplit(link).path for link in behind[:_DEEPER])
    return list(found)


def watch(pipe: Connection, address: str, viewers: int) -> None:
    """Task: hold `viewers` live overviews open, and read what the dashboard sends until `stop`.

    The result is the number of bytes.

    The dashboard ends each stream after a while; a viewer opens it again, as browsers do.
    """
    lines = [_live(address) for _ in range(viewers)]
    for line in lines:
        line.read1(65_536)
    pipe.send("ready")
    count = 0
    while not pipe.poll():
        for place, line in enumerate(lines):
            part = line.read1(65_536)  # a live page sends something each second
            count += len(part)
            if not part:
                lines[place] = _live(address)
    pipe.send(count)


def _live(address: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address, timeout=_READY_S)
    connection.request("GET", "/live", headers={"host": "localhost"})
    answer = connection.getresponse()
    assert answer.status == 200, f"the live overview answered {answer.status}"
    return answer


def burst_rate(server: BenchServer, count: int, address: str | None = None, viewers: int = 0) -> float:
    """How many messages a second a dispatcher releases of a burst that is due at once.

    Args:
        server: the server of the store.
        count: messages in the burst.
        address: the dashboard that viewers watch. Defaults to None: nobody watches.
        viewers: how many live overviews are open while the dispatcher works. Defaults to 0.
    """
    with open_store(server.client, namespace=NAMESPACE) as store:
        for batch in in_batches(plain_items(ids(count, f"{time.time_ns()}"), 0)):
            store.schedule(batch)
        audience = Outside(watch, address, viewers) if viewers else None
        try:
            return _drain_rate(store, count)
        finally:
            if audience is not None:
                audience.stop()
                audience.result()


def _drain_rate(store: DelayStore, count: int) -> float:
    begun = time.perf_counter()
    with Dispatcher(store, NullPublisher()) as dispatcher:
        give_up = time.monotonic() + _GIVE_UP_S
        while dispatcher.stats.published < count:
            assert time.monotonic() < give_up, f"not drained: {dispatcher!r}"
            time.sleep(0.002)  # the dispatcher does not signal the end
        return count / (time.perf_counter() - begun)
