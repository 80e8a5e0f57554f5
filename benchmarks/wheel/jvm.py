"""Kafka's own `SystemTimer` and Netty's `HashedWheelTimer`, from their published jars, through a driver of ours.

The driver (`benchmarks/jvm`) is built by Maven into `target/` the first time. It measures CPU time of the calling
thread, after warming up, with the same deadlines; Kafka's expire includes the hand-over to its executor's thread, which
is part of its `advanceClock`. Netty expires on a thread of its own by real time, so only its add is compared.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parents[1] / "jvm"


def compare(table: Mapping[str, Any], count: str) -> dict[str, Any]:
    """`vs_kafka` and `vs_netty` at `count` uniform timers, and the JVM's own nanoseconds."""
    measured = _measured()
    at: dict[str, Any] = measured[count]
    add = table["schedule"]["uniform"].get(count, {}).get("wheel, compiled")
    expire = table["expire"]["uniform"].get(count, {}).get("wheel, compiled")
    return {
        "vs_kafka": {"add": _over(at["kafka"]["add"], add), "expire": _over(at["kafka"]["expire"], expire)},
        "vs_netty": {"add": _over(at["netty"]["add"], add)},
        "jvm": measured,
    }


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
