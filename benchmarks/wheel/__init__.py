"""`python -m benchmarks wheel`: how much a timer costs, with our wheel and with other timers for Python.

A ratio "a vs b" is b's time divided by a's: above 1, a is faster. Two ratios are the other way round, our time divided
by a lower bound. For `_vs_floor` the bound is the time to call a C function and to create an object with slots, see
`mixes.floor_ns`. For `_vs_handle` it is the time to create the object that a timer returns for an entry (its handle),
see `subjects.HandleOnly`. Times are CPU time of the thread, in nanoseconds. A ratio is computed in each round; a figure
is the median over rounds. A subject is a timer that is measured, see `subjects`. A mix is a set of deadlines.
A program is a sequence of requests; a request sets one timer, and most requests cancel it before it is due, see
`mixes`. A gate is a bound that a figure must keep.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.child import run_module
from benchmarks.figures import Figure
from benchmarks.measured import Measured
from benchmarks.narration import Narration
from benchmarks.rounds import interleaved, median_spread, over_rounds
from benchmarks.wheel import jvm as on_the_jvm
from benchmarks.wheel import lateness
from benchmarks.wheel.mixes import (
    Mix,
    Program,
    deadlines_ms,
    fill_and_drain,
    floor_ns,
    moments_ms,
    program,
    run_program,
)
from benchmarks.wheel.plots import write_plots
from benchmarks.wheel.ratios import Rounds, compare
from benchmarks.wheel.subjects import MIXED, SUBJECTS
from benchmarks.wheel.tables import full_table
from wheel_sched import wheel

__all__ = ["FIGURES", "FULL", "JVM_FIGURES", "QUICK", "Sizes", "measured", "run", "sections", "write_plots"]


def _late(key: str, meaning: str, at_most: float) -> Figure:
    """Make a figure of lateness. Its gate is `at_most` times the lateness of a program without a timer in this run."""
    return Figure(key, "ms", meaning, at_most=at_most, baseline=f"baseline.{key}", in_baselines=True)


def _over(
    key: str, meaning: str, baseline: str, *, at_least: float | None = None, at_most: float | None = None
) -> Figure:
    """Make the figure of a ratio. `baseline`: where the object `baseline` of the result has the compared time."""
    return Figure(key, "x", meaning, at_least=at_least, at_most=at_most, baseline=f"baseline.{baseline}")


FIGURES = (
    _over(
        "compiled_schedule_vs_floor", "schedule at 10 k over a C call and a slotted object", "floor_ns_10k", at_most=1.5
    ),
    _over("pure_schedule_vs_handle", "schedule at 10 k over making and keeping a handle", "handle_ns_10k", at_most=2.5),
    Figure("compiled_expire_ns_100k", "ns", "expire one of 100 k timers spread over an hour; our goal: 150"),
    _over(
        "compiled_vs_kombu_100k.expire", "expire against kombu's timer at 100 k", "kombu_ns_100k.expire", at_least=10
    ),
    _over(
        "compiled_vs_heapq_90cancelled.10k",
        "90 % cancelled, 10 k live, against heapq",
        "heapq_90cancelled_ns.10k",
        at_least=5,
    ),
    _over(
        "compiled_vs_heapq_90cancelled.100k",
        "90 % cancelled, 100 k live, against heapq",
        "heapq_90cancelled_ns.100k",
        at_least=5,
    ),
    _over(
        "pure_vs_heapq_90cancelled_10k",
        "90 % cancelled, 10 k live, against heapq",
        "heapq_90cancelled_ns.10k",
        at_least=2,
    ),
    _over("compiled_vs_kombu_10k.add", "schedule against kombu's timer at 10 k", "kombu_ns_10k.add", at_least=8),
    _over("compiled_vs_kombu_10k.expire", "expire against kombu's timer at 10 k", "kombu_ns_10k.expire", at_least=10),
    Figure("bytes_per_timer.pure", "bytes", "memory of a pending timer", at_most=130),
    Figure("bytes_per_timer.compiled", "bytes", "memory of a pending timer", at_most=100),
    Figure("kept_after_cancel.pure", "bytes", "memory kept per timer after all were cancelled", at_most=10),
    Figure("kept_after_cancel.compiled", "bytes", "memory kept per timer after all were cancelled", at_most=10),
    Figure("wakeups_after_cancel", "wake-ups", "wake-ups after all timers were cancelled", at_most=0),
    _late("lateness_ms.threads.p50", "2,000 timers over 2 s, half of them", 3),
    _late("lateness_ms.threads.p99", "99 of 100", 5),
    _late("lateness_ms.asyncio.p50", "2,000 timers over 2 s, half of them", 3),
    _late("lateness_ms.asyncio.p99", "99 of 100", 5),
    Figure("early", "timers", "timers that fired before their deadline", at_most=0),
    Figure("baseline.lateness_ms.threads.p50", "ms", "baseline: a thread that waits for each deadline, half of them"),
    Figure("baseline.lateness_ms.threads.p99", "ms", "the same, 99 of 100"),
    Figure("baseline.lateness_ms.asyncio.p50", "ms", "baseline: the event loop's own `call_later`, half of them"),
    Figure("baseline.lateness_ms.asyncio.p99", "ms", "the same, 99 of 100"),
)
JVM_FIGURES = (
    Figure(
        "vs_kafka.add",
        "x",
        "compiled core against Kafka's SystemTimer, schedule at 100 k",
        at_least=1,
        baseline="jvm.100k.kafka add",
    ),
    Figure("vs_kafka.add_clock_apart", "x", "the same, without the time in which Kafka's reads the clock"),
    Figure(
        "vs_kafka.expire",
        "x",
        "expire until the tasks have run, against Kafka's SystemTimer",
        at_least=3,
        baseline="jvm.100k.kafka expire",
    ),
    Figure("vs_kafka.expire_caller", "x", "the same, without running the tasks"),
    Figure(
        "vs_netty.add",
        "x",
        "compiled core against Netty's HashedWheelTimer, schedule at 100 k",
        at_least=0.9,
        baseline="jvm.100k.netty add",
    ),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        rounds: rounds for counts below `large`. Defaults to 7.
        counts: numbers of pending timers. Defaults to 1 k, 10 k, 100 k and 1 M.
        large: the least count that is measured in `large_rounds` rounds. Defaults to 1 M.
        large_rounds: rounds for these counts. Defaults to 3.
        mixes: the mixes (sets of deadlines) to measure. Defaults to both.
        live: numbers of live timers in the measurement that cancels 90 % of all. Defaults to 1 k, 10 k and 100 k.
        constant_most: the greatest count that is measured with constant deadlines too. Defaults to 1 M.
        all: whether the measurement that cancels 90 % also measures timers other than the wheel and `heapq`, if they
            are fast enough. Defaults to True.
        memory: how many timers wait while memory is measured. Defaults to 1 M.
        memory_rounds: rounds that measure memory. Defaults to 3.
        lateness_rounds: rounds that measure lateness. Defaults to 3.
        timers: timers in each of these rounds. Defaults to 2,000.
        over_s: over how many seconds the deadlines of these timers are spread. Defaults to 2.
    """

    rounds: int = 7
    counts: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    large: int = 1_000_000
    large_rounds: int = 3
    mixes: tuple[Mix, ...] = ("uniform", "constant")
    live: tuple[int, ...] = (1_000, 10_000, 100_000)
    constant_most: int = 1_000_000
    all: bool = True
    memory: int = 1_000_000
    memory_rounds: int = 3
    lateness_rounds: int = 3
    timers: int = 2_000
    over_s: float = 2.0

    def plain(self) -> list[tuple[Mix, int, int]]:
        """The mix, the number of pending timers and the rounds of each measurement of schedule and expire."""
        return [
            (mix, count, self.large_rounds if count >= self.large else self.rounds)
            for mix in self.mixes
            for count in self.counts
            if mix == "uniform" or count <= self.constant_most
        ]

    def mixed(self) -> list[tuple[Mix, int, int]]:
        """The mix, the number of live timers and the rounds of each program that cancels 90 % of its timers."""
        return [
            (mix, live, self.large_rounds if live >= min(self.large, 100_000) else _MORE * self.rounds)
            for mix in self.mixes
            for live in self.live
            if mix == "uniform" or live <= self.constant_most
        ]


FULL = Sizes()
QUICK = Sizes(
    rounds=5,
    counts=(10_000, 100_000),
    large=100_000,
    large_rounds=2,
    live=(10_000, 100_000),
    constant_most=10_000,
    all=False,
    memory=500_000,  # with this many timers, one arena of memory more or less does not matter
    memory_rounds=2,
    lateness_rounds=2,
)
_LABELS = {1_000: "1k", 10_000: "10k", 100_000: "100k", 1_000_000: "1m"}
_MORE = 2  # figures that a busy machine disturbs most get this many times the usual rounds
_SLOW_TO_DRAIN = 100_000  # sched and asyncio take minutes for more


def measured(sizes: Sizes) -> dict[str, Measured]:
    """How long figures are measured in a run with these sizes. A key is that of a figure, or begins several of them."""
    late = Measured(sizes.lateness_rounds, sizes.timers, "timers", sizes.over_s)
    return dict.fromkeys(("lateness_ms", "baseline.lateness_ms"), late)


def run(sizes: Sizes, *, jvm: bool = False) -> dict[str, Any]:
    """Run the benchmark. Returns the value of each figure by its key.

    The key `table` has the nanoseconds by operation, mix, count and subject.
    """
    narration = Narration(_steps(sizes) + on_the_jvm.STEPS * jvm)
    table: dict[str, dict[str, dict[str, dict[str, float]]]] = {"schedule": {}, "expire": {}, "cancelled90": {}}
    plain: dict[tuple[Mix, int], tuple[Rounds, Rounds]] = {}
    mixed: dict[tuple[Mix, int], Rounds] = {}
    for mix, count, rounds in sizes.plain():
        plain[mix, count] = _plain(mix, count, rounds, narration)
        for name, values in zip(("schedule", "expire"), plain[mix, count], strict=True):
            _enter(table[name], mix, count, values)
    for mix, live, rounds in sizes.mixed():
        mixed[mix, live] = _mixed(sizes, mix, live, rounds, narration)
        _enter(table["cancelled90"], mix, live, mixed[mix, live])
    parts = [compare(plain, mixed), _memory(sizes, narration), _lateness(sizes, narration)]
    result = {
        "core": wheel.CORE,
        **{key: value for part in parts for key, value in part.items()},
        "baseline": {key: value for part in parts for key, value in part.get("baseline", {}).items()},
        "spread": {key: value for part in parts for key, value in part["spread"].items()},
        "table": table,
        "python": platform.python_version(),
        "cpus": os.cpu_count() or 1,
        "rounds": sizes.rounds,
    }
    if jvm:
        found = on_the_jvm.compare(narration)
        result |= found | {"spread": result["spread"] | found["spread"]}
    narration.close()
    return result


def sections(result: Mapping[str, Any]) -> dict[str, str]:
    """A table of all measurements, for docs/benchmarks.md."""
    return {"wheel, all": full_table(result)}


def _steps(sizes: Sizes) -> int:
    plain = sum(rounds * (1 + len(_subjects(count))) for _, count, rounds in sizes.plain())
    mixed = sum(rounds * (1 + len(_mixed_subjects(sizes, live))) for _, live, rounds in sizes.mixed())
    return len(wheel.CORES) * sizes.memory_rounds + 4 * sizes.lateness_rounds + plain + mixed


def _mixed_subjects(sizes: Sizes, live: int) -> list[str]:
    """The subjects that run the programs: those with a gate, and in a full run all others that are fast enough."""
    return [name for name in MIXED if name.startswith(("wheel", "heapq")) or (sizes.all and live < _SLOW_TO_DRAIN)]


def _subjects(count: int) -> list[str]:
    """The subjects that are fast enough for this many timers."""
    if count < _SLOW_TO_DRAIN:
        return list(SUBJECTS)
    kept = [name for name in SUBJECTS if name not in ("sched", "asyncio", "uvloop")]
    return kept if count == _SLOW_TO_DRAIN else [name for name in kept if name.startswith(("wheel", "heapq", "handle"))]


def _plain(mix: Mix, count: int, rounds: int, narration: Narration) -> tuple[Rounds, Rounds]:
    """Measure the nanoseconds to schedule and to expire a timer. Returns both by subject, with a value per round.

    The times to schedule also have the subject "floor", see `floor_ns`.
    """
    due_ms = deadlines_ms(mix, count, seed=count)
    steps_ms = moments_ms(due_ms)
    runs: dict[str, Any] = {"floor": lambda: (floor_ns(due_ms), None)}
    for name in _subjects(count):
        runs[name] = partial(_fresh, name, due_ms, steps_ms)
    label = f"{mix}, {_LABELS.get(count, count)}"
    found = interleaved(rounds, {f"{name} ({label})": one for name, one in runs.items()}, narration)
    both = dict(zip(runs, found.values(), strict=True))
    schedule = {name: [pair[0] for pair in pairs if pair] for name, pairs in both.items()}
    expire = {name: [pair[1] for pair in pairs if pair and pair[1] is not None] for name, pairs in both.items()}
    return {n: v for n, v in schedule.items() if v}, {n: v for n, v in expire.items() if v}


def _fresh(name: str, due_ms: list[int], steps_ms: list[int]) -> tuple[float, float | None] | None:
    try:
        subject = SUBJECTS[name]()
    except ModuleNotFoundError:  # the peer is not installed, so its figures miss their gates
        return None
    return fill_and_drain(subject, due_ms, steps_ms)


def _mixed(sizes: Sizes, mix: Mix, live: int, rounds: int, narration: Narration) -> Rounds:
    """Run the program (see `mixes`) with each subject, and measure the nanoseconds of a request without the loop.

    Returns a value per round for each subject.
    """
    plan = program(mix, live, seed=live)
    label = f"{mix}, 90 % cancelled, {_LABELS.get(live, live)}"
    runs = {f"loop ({label})": partial(run_program, None, plan)}
    for name in _mixed_subjects(sizes, live):
        runs[f"{name} ({label})"] = partial(_requests, name, plan)
    loop, *found = interleaved(rounds, runs, narration).values()
    net = [[ns - loop_ns for ns, loop_ns in zip(values, loop, strict=True)] for values in found]
    return dict(zip(_mixed_subjects(sizes, live), net, strict=True))


def _requests(name: str, plan: Program) -> float:
    return run_program(SUBJECTS[name]().timer, plan)


def _enter(table: dict[str, dict[str, dict[str, float]]], mix: Mix, count: int, values: Rounds) -> None:
    label = _LABELS.get(count, str(count))
    table.setdefault(mix, {})[label] = {name: round(median(found), 1) for name, found in values.items()}


def _memory(sizes: Sizes, narration: Narration) -> dict[str, Any]:
    """Measure the memory of each core in a process of its own, in every round."""
    cores = sorted(wheel.CORES)
    runs = {
        f"memory, {core} core": partial(run_module, "benchmarks.wheel.memory", core, str(sizes.memory))
        for core in cores
    }
    found = dict(zip(cores, interleaved(sizes.memory_rounds, runs, narration).values(), strict=True))
    spread = {
        f"{key}.{core}": over_rounds([one[name] for one in rounds], 1)
        for key, name in (("bytes_per_timer", "bytes_per_timer"), ("kept_after_cancel", "kept_bytes_per_timer"))
        for core, rounds in found.items()
    }
    return {
        **{
            key: {core: spread[f"{key}.{core}"]["median"] for core in cores}
            for key in ("bytes_per_timer", "kept_after_cancel")
        },
        "wakeups_after_cancel": sum(one["wakeups"] for rounds in found.values() for one in rounds),
        "spread": spread,
    }


def _lateness(sizes: Sizes, narration: Narration) -> dict[str, Any]:
    runs = {
        "threads": lambda: lateness.on_threads(sizes.timers, sizes.over_s),
        "bare threads": lambda: lateness.on_a_bare_thread(sizes.timers, sizes.over_s),
        "asyncio": lambda: lateness.on_asyncio(sizes.timers, sizes.over_s),
        "bare asyncio": lambda: lateness.on_a_bare_loop(sizes.timers, sizes.over_s),
    }
    found = interleaved(sizes.lateness_rounds, runs, narration)
    late = {name: median_spread([one.lateness_ms for one in rounds]) for name, rounds in found.items()}
    kinds = ("threads", "asyncio")
    return {
        "lateness_ms": {kind: late[kind] for kind in kinds},
        "early": sum(one.early for kind in kinds for one in found[kind]),
        "baseline": {"lateness_ms": {kind: late[f"bare {kind}"] for kind in kinds}},
        "spread": {
            f"lateness_ms.{kind}.{part}": over_rounds([one.lateness_ms[part] for one in found[kind]])
            for kind in kinds
            for part in ("p50", "p99")
        },
    }
