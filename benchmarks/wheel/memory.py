"""Measures how many bytes a pending timer takes, and how many bytes are still in use after all timers were cancelled.

`python -m benchmarks.wheel.memory CORE COUNT` prints one JSON object. The bytes are the growth of the resident memory
between an empty wheel and a full one whose handles are kept. They do not include the list of the handles, nor the
integers of the deadlines, which the caller made.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from typing import Any

from benchmarks.resident import resident_bytes
from wheel_sched.wheel import CORES

_HOUR_MS = 3_600_000


def measure(core: str, count: int) -> dict[str, Any]:
    """Fill a wheel of `core` with `count` timers, and cancel them.

    Returns `bytes_per_timer`; `kept_bytes_per_timer`, which stay after all were cancelled; and `wakeups`, the number of
    wake-ups that the empty wheel still asks for.
    """
    wheel: Any = CORES[core]()
    task = object()
    rng = random.Random(7)
    due_ms = [rng.randint(1, _HOUR_MS) for _ in range(count)]  # the caller's integers
    handles: list[Any] = [None] * count
    order = list(range(count))
    rng.shuffle(order)  # requests end in any order; if a few entries stayed in each page, all memory would stay in use
    gc.collect()
    before = resident_bytes()
    for number, deadline_ms in enumerate(due_ms):
        handles[number] = wheel.schedule(task, deadline_ms)
    full = resident_bytes()
    for number in order:
        handles[number].cancel()
        handles[number] = None
    gc.collect()
    wakeups = 0 if wheel.next_expiry() is None else 1
    wakeups += len(wheel.advance(2 * _HOUR_MS))
    assert len(wheel) == 0
    kept = max(0, resident_bytes() - before)
    return {
        "bytes_per_timer": round((full - before) / count, 1),
        "kept_bytes_per_timer": round(kept / count, 1),
        "wakeups": wakeups,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
