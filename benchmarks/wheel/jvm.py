"""Compares our compiled core with Kafka's `SystemTimer` and Netty's `HashedWheelTimer`, from their published jars.

Each of the two sides, the JVM and Python, is a separate process with the same delays. Both warm up for some rounds,
which do not count. The sides take turns: while one measures, the other waits for input. Maven builds the program of the
JVM (`benchmarks/jvm`) into `target/` the first time. The program in Python is `beside_the_jvm`.

Add is the call with which users schedule a timer. Kafka's call makes its task and its entry, reads the clock and takes
a lock; the time to read the clock is also measured alone. Our call makes its entry and gets the deadline. No side keeps
the handles.

Expire begins with waiting timers and ends when their tasks have run, in a thousand steps of time. Each task adds 1 to a
counter. Kafka's timer gives each task to another thread, so the CPU time of that thread counts too. Our `advance`
returns the tasks, and the loop of the benchmark runs them. `caller` is the part before the tasks run: in Kafka until
they are given to the other thread, with ours the calls of `advance`.

The garbage collector and the compiler of the JVM run on threads that do not count, so Python's collector is off. Netty
expires timers on its own thread in real time, so only its add is compared.
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
from benchmarks.rounds import over_rounds, ratios
from benchmarks.wheel.mixes import HOUR_MS
from wheel_sched.wheel import CORES

COUNTS = {"10k": 10_000, "100k": 100_000}
WARM_UP = 8
ROUNDS = 9
# the key of the figure, the name of their time, the name of our time; without a compiled core ours is missing
_RATIOS = (
    ("vs_kafka.add", "kafka add", "ours add"),
    ("vs_kafka.add_clock_apart", "kafka add, clock apart", "ours add"),
    ("vs_kafka.expire", "kafka expire", "ours expire"),
    ("vs_kafka.expire_caller", "kafka caller", "ours caller"),
    ("vs_netty.add", "netty add", "ours add"),
)
STEPS = len(COUNTS) * (WARM_UP + ROUNDS)
_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "benchmarks" / "jvm"


def compare(narration: Narration) -> dict[str, Any]:
    """Compare the compiled core with the timers of Kafka and Netty.

    Returns `vs_kafka` and `vs_netty` for 100 k timers, `spread` with the rounds of each ratio, and `jvm`: all times in
    nanoseconds.
    """
    java = ["java", "-Xmx2g", "-cp", _built(), "org.wheelsched.benchmark.Timers"]
    python = [sys.executable, "-m", "benchmarks.wheel.beside_the_jvm"]
    table: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, _Side(java) as theirs, _Side(python) as ours:
        for label, count in COUNTS.items():
            rounds = _rounds(theirs, ours if "compiled" in CORES else None, count, Path(folder), label, narration)
            table[label] = {name: round(median(one[name] for one in rounds), 2) for name in rounds[0]}
            last = rounds
    return {**figures(last), "jvm": table}


def figures(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """The ratios, and `spread` with their rounds. `rounds` has the nanoseconds by name, for each round.

    A ratio is None, and has no spread, if our compiled core was not measured.
    """
    spread = {
        key: over_rounds(ratios([one[theirs] for one in rounds], [one[ours] for one in rounds]), 2)
        for key, theirs, ours in _RATIOS
        if ours in rounds[0]
    }
    medians = {key: spread[key]["median"] if key in spread else None for key, *_ in _RATIOS}
    kafka = {key.removeprefix("vs_kafka."): value for key, value in medians.items() if key.startswith("vs_kafka.")}
    return {"vs_kafka": kafka, "vs_netty": {"add": medians["vs_netty.add"]}, "spread": spread}


class _Side:
    """One side of the comparison, in its own process, which reads names of files with delays and answers in JSON."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
        )
        return self

    def ask(self, delays: Path) -> dict[str, float]:
        """Let the process run one round with the delays of a file. Returns its times in nanoseconds."""
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
    """Let both sides run all rounds with `count` timers. Returns the nanoseconds per timer by name, for each round."""
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


def _built() -> str:
    build = ["mvn", "--batch-mode", "--quiet", "-f", str(_FOLDER / "pom.xml"), "package"]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return f"{_FOLDER / 'target' / 'classes'}:{_FOLDER / 'target' / 'dependency'}/*"
