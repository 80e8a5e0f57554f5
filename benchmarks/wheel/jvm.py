"""Kafka's `SystemTimer` and Netty's `HashedWheelTimer`, from their published jars, beside our compiled core.

Each side is a separate process with the same delays. It warms up for some rounds, which do not count. The sides take
turns: while one measures, the other waits for its stdin. Maven builds the driver of the JVM (`benchmarks/jvm`) into
`target/` the first time. Ours is `beside_the_jvm`.

Add is the call that users write. Kafka's makes its task and its entry, reads the clock and takes a lock; the clock is
measured apart. Ours makes its entry and gets the deadline. Nobody keeps a handle.

Expire begins with waiting timers and ends when their tasks have run, an increment of a counter each, in the same
thousand steps of time. Kafka's advance gives each task to another thread, so the CPU time of that thread counts. Ours
returns the tasks, and the loop around it runs them. `caller` is the part without the runs: Kafka's advance with the
hand-over, and our `advance` alone.

The JVM's collector and compiler run on threads that are not counted, so Python's collector is off. Netty expires timers
on its own thread in real time, so only its add is compared.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

from benchmarks.narration import Narration
from benchmarks.wheel.mixes import HOUR_MS
from wheel_sched.wheel import CORES

COUNTS = {"10k": 10_000, "100k": 100_000}
WARM_UP = 8
ROUNDS = 9
STEPS = len(COUNTS) * (WARM_UP + ROUNDS)
_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "benchmarks" / "jvm"


def compare(narration: Narration) -> dict[str, Any]:
    """Returns `vs_kafka` and `vs_netty` at 100 k uniform timers, and the nanoseconds of all sides."""
    java = ["java", "-Xmx2g", "-cp", _built(), "org.wheelsched.benchmark.Timers"]
    python = [sys.executable, "-m", "benchmarks.wheel.beside_the_jvm"]
    table: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, _Side(java) as theirs, _Side(python) as ours:
        for label, count in COUNTS.items():
            rounds = _rounds(theirs, ours if "compiled" in CORES else None, count, Path(folder), label, narration)
            table[label] = {name: round(median(one[name] for one in rounds), 2) for name in rounds[0]}
            last = rounds
    return {
        "vs_kafka": {
            "add": _over(last, "kafka add", "ours add"),
            "add_clock_apart": _over(last, "kafka add, clock apart", "ours add"),
            "expire": _over(last, "kafka expire", "ours expire"),
            "expire_caller": _over(last, "kafka caller", "ours caller"),
        },
        "vs_netty": {"add": _over(last, "netty add", "ours add")},
        "jvm": table,
    }


class _Side:
    """One side of the comparison, in its own process. It reads the name of a file of delays and answers in JSON."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
        )
        return self

    def ask(self, delays: Path) -> dict[str, float]:
        """Run one round with the delays of a file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{delays}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"{self._command} ended with {self._process.wait()}"
        found: dict[str, float] = json.loads(answer)
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # ends the process
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _rounds(
    theirs: _Side, ours: _Side | None, count: int, folder: Path, label: str, narration: Narration
) -> list[dict[str, float]]:
    """Nanoseconds by side and round."""
    found = []
    for number in range(-WARM_UP, ROUNDS):
        narration.step(f"JVM, {label}, " + (f"round {number + 1} of {ROUNDS}" if number >= 0 else "warm-up"))
        delays = folder / "delays"
        delays.write_bytes(_delays(count, number))
        sides = (theirs, ours) if number % 2 else (ours, theirs)
        answers = {side: side.ask(delays) for side in sides if side is not None}
        jvm = answers[theirs]
        values = {
            "kafka add": jvm["add"],
            "kafka clock": jvm["clock"],
            "kafka add, clock apart": jvm["add"] - jvm["clock"],
            "kafka caller": jvm["caller"],
            "kafka expire": jvm["caller"] + jvm["executor"],
            "netty add": jvm["netty"],
        }
        if ours is not None:
            values |= {f"ours {name}": ns for name, ns in answers[ours].items()}
        if number >= 0:
            found.append(values)
    return found


def _delays(count: int, seed: int) -> bytes:
    rng = random.Random(seed)
    delays = array("q", [rng.randint(1, HOUR_MS) for _ in range(count)])
    if sys.byteorder == "big":
        delays.byteswap()
    return delays.tobytes()


def _over(rounds: list[dict[str, float]], theirs: str, ours: str) -> float | None:
    """The median over rounds of their time divided by ours."""
    if ours not in rounds[0]:
        return None
    return round(median(one[theirs] / one[ours] for one in rounds), 2)


def _built() -> str:
    build = ["mvn", "--batch-mode", "--quiet", "-f", str(_FOLDER / "pom.xml"), "package"]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return f"{_FOLDER / 'target' / 'classes'}:{_FOLDER / 'target' / 'dependency'}/*"
