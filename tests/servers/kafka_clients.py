"""A check that a test leaves no client of Kafka open. A client whose server is gone tries to reach it many times a
second, for the rest of the test run."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 10.0
TASKS = Path("/proc/self/task")


@contextmanager
def no_more_clients() -> Iterator[None]:
    """Fail if more clients are open at the end than at the beginning. Without `/proc`, nothing is checked.

    A client ends when it is freed. Only the garbage collector frees clients in a cycle of references, so it runs while
    clients are left.
    """
    before = open_clients()
    yield
    until_s = time.monotonic() + PATIENCE_S
    while (left := open_clients()) > before:
        gc.collect()
        assert time.monotonic() < until_s, f"{left - before} clients of Kafka are still open"
        time.sleep(0.02)  # polls until a thread has left its group and has let go of its client


def open_clients() -> int:
    """The number of clients of librdkafka in this process. Each client has one thread named "rdk:main"."""
    return sum(_name(task) == "rdk:main" for task in TASKS.iterdir()) if TASKS.exists() else 0


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # the thread has ended
        return ""
