"""Measures the heartbeats of a `HeartbeatMonitor` with many members, on one thread.

`python -m benchmarks.purgatory.heartbeats MEMBERS BEATS` prints one JSON object.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time

from benchmarks.resident import resident_bytes
from wheel_sched.purgatory import HeartbeatMonitor

SESSION_MS = 45_000  # Kafka's `session.timeout.ms`


def run(members: int, beats: int) -> dict[str, float]:
    """Send heartbeats in random order. Returns heartbeats and joins per second, and bytes per member without its id."""
    ids = list(range(10**6, 10**6 + members))
    order = random.Random(1).choices(ids, k=beats)
    gc.collect()
    before = resident_bytes()
    expired: list[int] = []
    monitor = HeartbeatMonitor[int](SESSION_MS, expired.append)
    start = time.perf_counter()
    for member in ids:
        monitor.add(member)
    added = time.perf_counter()
    held = resident_bytes() - before
    beat = monitor.beat
    begun = time.perf_counter()
    for member in order:
        beat(member)
    ended = time.perf_counter()
    assert len(monitor) == members
    assert not expired
    return {
        "heartbeats_per_s": round(beats / (ended - begun)),
        "joins_per_s": round(members / (added - start)),
        "bytes_per_member": round(held / members, 1),
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
