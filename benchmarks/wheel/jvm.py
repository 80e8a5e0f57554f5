"""Kafka's own `SystemTimer` and Netty's `HashedWheelTimer`, from their published jars, through a driver of ours.

The driver (`benchmarks/jvm`) is built by Maven into `target/` the first time. It measures CPU time of the calling
thread, after warming up, with the same deadlines; Kafka's expire includes the hand-over to its executor's thread, which
is part of its `advanceClock`. The JVM's collector works on threads of its own and is not counted, so Python's is off.
Netty expires on a thread of its own by real time, so only its add is compared.
"""

from __future__ import annotations

import gc
import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.wheel.mixes import deadlines_ms, fill_and_drain, moments_ms
from benchmarks.wheel.subjects import SUBJECTS

_ROUNDS = 9
_FOLDER = Path(__file__).resolve().parents[1] / "jvm"


def compare() -> dict[str, Any]:
    """`vs_kafka` and `vs_netty` at 100 k uniform timers, and the nanoseconds of both sides."""
    measured = _measured()
    at: dict[str, Any] = measured["100k"]
    add, expire = _ours(100_000)
    return {
        "vs_kafka": {"add": _over(at["kafka"]["add"], add), "expire": _over(at["kafka"]["expire"], expire)},
        "vs_netty": {"add": _over(at["netty"]["add"], add)},
        "jvm": {**measured, "wheel, compiled": {"add": add, "expire": expire}},
    }


def _ours(count: int) -> tuple[float, float] | tuple[None, None]:
    """Nanoseconds of the compiled core, with Python's collector off."""
    if "wheel, compiled" not in SUBJECTS:
        return None, None
    due_ms = deadlines_ms("uniform", count, seed=1)
    steps_ms = moments_ms(due_ms)
    gc.disable()
    # A JVM keeps the pages of its heap; without some survivors Python would give them back and have them zeroed anew.
    warm = SUBJECTS["wheel, compiled"]()
    survivors = warm.fill(due_ms * 2)
    warm.cancel(survivors)
    survivors = survivors[::1000]
    try:
        found = [fill_and_drain(SUBJECTS["wheel, compiled"](), due_ms, steps_ms) for _ in range(_ROUNDS)]
    finally:
        gc.enable()
        del survivors
    return median(add for add, _ in found), median(expire or 0 for _, expire in found)


def _over(theirs: float, ours: float | None) -> float | None:
    return None if ours is None else round(theirs / ours, 2)


def _measured() -> dict[str, Any]:
    build = ["mvn", "--batch-mode", "--quiet", "-f", str(_FOLDER / "pom.xml"), "package"]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, timeout=600)
    classpath = f"{_FOLDER / 'target' / 'classes'}:{_FOLDER / 'target' / 'dependency'}/*"
    java = ["java", "-Xmx2g", "-cp", classpath, "org.wheelsched.benchmark.Timers"]
    done = subprocess.run(java, check=True, text=True, capture_output=True, timeout=300)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
