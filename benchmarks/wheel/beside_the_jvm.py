"""Measures our compiled core for the comparison with timers on the JVM, in a process of its own.

The process reads names of files from stdin and answers in JSON, as the program on the JVM does.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from array import array
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.wheel.mixes import HOUR_MS
from wheel_sched.wheel import CORES

_STEPS = 1_000
_MOST = 100_000


def main() -> None:
    """Read from stdin names of files with delays, one per line. Answer each with a line of JSON."""
    gc.disable()
    kept: list[Any] = []
    for line in sys.stdin:
        delays = array("q", Path(line.strip()).read_bytes())
        if sys.byteorder == "big":
            delays.byteswap()
        due_ms = delays.tolist()
        kept = kept or _pages(2 * _MOST)
        print(json.dumps(measured(due_ms)), flush=True)


def _pages(timers: int) -> list[Any]:
    """Make and cancel many entries, and return a few of them.

    As long as these few live, Python keeps the memory pages of all entries, as a JVM keeps its heap. Otherwise Python
    would free the pages after each round, and the kernel would have to fill new pages with zeros.
    """
    wheel: Any = CORES["compiled"]()
    entries = [wheel.schedule(None, HOUR_MS) for _ in range(timers)]
    for entry in entries:
        entry.cancel()
    return entries[::1000]


def measured(due_ms: list[int]) -> dict[str, float]:
    """Measure the nanoseconds of CPU that a timer takes: `add`, `caller` and `expire`, see `benchmarks.wheel.jvm`."""
    steps_ms = [HOUR_MS * step // _STEPS for step in range(1, _STEPS + 1)]
    add, caller = _only_handed_out(due_ms, steps_ms)
    return {"add": add, "caller": caller, "expire": _run(due_ms, steps_ms)}


def _only_handed_out(due_ms: list[int], steps_ms: list[int]) -> tuple[float, float]:
    wheel: Any = CORES["compiled"]()
    schedule, advance = wheel.schedule, wheel.advance
    task = object()
    gc.collect()
    begun_ns = time.thread_time_ns()
    for deadline_ms in due_ms:
        schedule(task, deadline_ms)
    add_ns = time.thread_time_ns() - begun_ns
    begun_ns = time.thread_time_ns()
    for now_ms in steps_ms:
        advance(now_ms)
    caller_ns = time.thread_time_ns() - begun_ns
    assert len(wheel) == 0
    return add_ns / len(due_ms), caller_ns / len(due_ms)


def _run(due_ms: list[int], steps_ms: list[int]) -> float:
    wheel: Any = CORES["compiled"]()
    fired = count()
    task = fired.__next__
    for deadline_ms in due_ms:
        wheel.schedule(task, deadline_ms)
    advance = wheel.advance
    gc.collect()
    begun_ns = time.thread_time_ns()
    for now_ms in steps_ms:
        for entry in advance(now_ms):
            entry.task()
    spent_ns = time.thread_time_ns() - begun_ns
    assert next(fired) == len(due_ms)
    return spent_ns / len(due_ms)


if __name__ == "__main__":
    main()
