"""The case `dispatchers`: how fast more and more dispatchers drain one burst. Each is a process of its own.

All messages are due at the same millisecond. The time counts from then until the last one is published.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.bursts import store_ahead, wait_for
from benchmarks.growth.case import Case, Knee, Models, Points, Quantity, Sizes
from benchmarks.growth.model import CONSTANT
from benchmarks.growth.shared_server import MICROSECONDS, full_from, rates_of
from benchmarks.narration import Narration
from benchmarks.processor import Processor
from benchmarks.server import BenchServer, bench_server

QUANTITIES = (
    Quantity("rate_per_s", "1/s", "messages published a second, processes and server on this machine"),
    Quantity("rate_apart_per_s", "1/s", "the same, if each process and the server have a processor of their own"),
    Quantity("process_us", "µs", "processor time of the dispatchers for a message", (CONSTANT,), drawn=False),
    Quantity("server_us", "µs", "processor time of the server for a message", (CONSTANT,), drawn=False),
)


def measure(sizes: Sizes, narration: Narration) -> Points:
    """Drain one burst with each number of dispatchers."""
    points: dict[str, dict[int, float]] = {"rate_per_s": {}, "process_us": {}, "server_us": {}}
    with bench_server() as server:
        for size in sizes.measured:
            narration.step(f"{size} dispatchers")
            rounds = [_drained_by(server, size, sizes.work) for _ in range(sizes.rounds)]
            for key in points:
                points[key][size] = median(found[key] for found in rounds)
    return points


def _drained_by(server: BenchServer, dispatchers: int, count: int) -> dict[str, float]:
    store = server.empty_store()
    processor = Processor(server.pid)
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_dispatcher(server.url)) for _ in range(dispatchers)]
        due_ms = store_ahead(store, count)
        before_ns = processor.worked_ns()
        wait_for(lambda: not any(store.counts().sizes[state] for state in ("due", "leased")))
        server_ns = processor.worked_ns() - before_ns
        found: list[dict[str, Any]] = [json.loads(child.communicate("")[0]) for child in children]
    assert sum(one["published"] for one in found) == count
    took_s = max(one["last_s"] for one in found) - due_ms / 1000
    return {
        "rate_per_s": count / took_s,
        "process_us": sum(one["processor_s"] for one in found) * MICROSECONDS / count,
        "server_us": server_ns / 1000 / count,
    }


@contextlib.contextmanager
def _dispatcher(url: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a started process with a dispatcher. It prints what it did when its input ends."""
    command = [sys.executable, "-m", "benchmarks.growth.dispatching", "drain", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def knees(models: Models) -> list[Knee]:
    """Where processors are full."""
    return [
        Knee(
            "the processors of this machine are full",
            full_from(models["rate_per_s"]),
            "nothing on this machine: more dispatchers here only add safety against a crash",
        ),
        Knee(
            "the server's one processor is full",
            full_from(models["rate_apart_per_s"]),
            "shards on several servers, or a service and a namespace of its own for a part of the topics",
        ),
    ]


CASE = Case(
    name="dispatchers",
    across="dispatchers",
    axis="messages a second",
    quantities=QUANTITIES,
    full=Sizes((1, 2, 4, 8), (16,), 40_000, rounds=3),
    quick=Sizes((1, 2, 4), (8,), 10_000),
    measure=measure,
    models=rates_of,
    knees=knees,
)
