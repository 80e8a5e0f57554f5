"""Bytes a pending timer takes, and what is left of a million that were all cancelled; each in a process of its own.

Bytes are those of the process (resident set) between an empty wheel and a full one whose handles are kept, without the
list that keeps them and without the deadlines' ints, which the caller made: what the operating system sees, with
allocator and containers in it.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from wheel_sched.wheel import CORES

_HOUR_MS = 3_600_000


def measure(core: str, count: int) -> dict[str, Any]:
    """`bytes_per_timer`, `kept_bytes_per_timer` after all were cancelled, and the `wakeups` that follow."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.wheel.memory", core, str(count)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(core: str, count: int) -> dict[str, Any]:
    """In the process that is measured."""
    wheel: Any = CORES[core]()
    task = object()
    rng = random.Random(7)
    due_ms = [rng.randint(1, _HOUR_MS) for _ in range(count)]  # the caller's ints, whoever keeps them
    handles: list[Any] = [None] * count
    order = list(range(count))
    rng.shuffle(order)  # as requests end: one entry kept here and there would keep all memory from going back
    gc.collect()
    before = _resident()
    for number, deadline_ms in enumerate(due_ms):
        handles[number] = wheel.schedule(task, deadline_ms)
    full = _resident()
    for number in order:
        handles[number].cancel()
        handles[number] = None
    gc.collect()
    wakeups = 0 if wheel.next_expiry() is None else 1
    wakeups += len(wheel.advance(2 * _HOUR_MS))
    assert len(wheel) == 0
    kept = max(0, _resident() - before)
    return {
        "bytes_per_timer": round((full - before) / count, 1),
        "kept_bytes_per_timer": round(kept / count, 1),
        "wakeups": wakeups,
    }


def _resident() -> int:
    """Bytes of memory this process has."""
    status = Path("/proc/self/statm")
    if status.exists():
        import resource

        return int(status.read_text("ascii").split()[1]) * resource.getpagesize()
    import tracemalloc  # not Linux: what Python allocated, from the first call on

    if not tracemalloc.is_tracing():
        tracemalloc.start()
    return tracemalloc.get_traced_memory()[0]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
