"""Runs many histories, on several cores, and collects what they violated.

Each batch runs in a child process that ends without cleaning up, because killed processes leave suspended greenlets
behind (`threads`). String hashes are the same in every run: the child starts with PYTHONHASHSEED=0.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.substitution import substituted
from wheel_sched.simulation.trace import Trace

BATCH = 40  # histories a child; one keeps about a megabyte
HASH_SEED = "0"


@dataclass(frozen=True, slots=True)
class Result:
    """What one history came to. `steps`: of the scheduler; `trace`: only when it was asked for."""

    scenario: Scenario
    violations: tuple[str, ...]
    digest: str
    steps: int
    trace: Trace | None = None


class Kind(Protocol):
    """A kind of world: what it is made of, and how it is judged."""

    name: str
    packages: Sequence[str]

    def draw(self, seed: int) -> Scenario:
        """The scenario of a seed."""
        ...

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        """Run a scenario. Answers its trace, what it violated, and the number of steps."""
        ...


def run_one(kind: Kind, scenario: Scenario, *, with_trace: bool = False) -> Result:
    """Run a scenario in this process, with the simulation installed already."""
    try:
        trace, found, steps = kind.run(scenario)
    except Exception:
        return Result(scenario, (f"crashed: {traceback.format_exc()[-2_000:]}",), "", 0)
    return Result(scenario, tuple(found), trace.digest(), steps, trace if with_trace else None)


def run_scenarios(kind: Kind, scenarios: Sequence[Scenario], *, with_trace: bool = False) -> list[Result]:
    """Run scenarios one after the other in a child process."""
    return next(_in_children([partial(_work, kind, scenarios, with_trace=with_trace)], 1))


def run_seeds(kind: Kind, seeds: Sequence[int], *, cores: int | None = None) -> Iterator[Result]:
    """Run the histories of these seeds on several cores; the results come in no fixed order."""
    batches = [seeds[start : start + BATCH] for start in range(0, len(seeds), BATCH)]
    works = [partial(_work, kind, batch) for batch in batches]
    for results in _in_children(works, cores or os.cpu_count() or 1):
        yield from results


def _work(kind: Kind, given: Sequence[int | Scenario], *, with_trace: bool = False) -> list[Result]:
    """Run scenarios, given as such or by their seeds."""
    scenarios = [kind.draw(one) if isinstance(one, int) else one for one in given]
    logging.disable(logging.CRITICAL)
    gc.disable()
    with substituted(kind.packages):
        return [run_one(kind, scenario, with_trace=with_trace) for scenario in scenarios]


def _in_children(works: Sequence[Callable[[], list[Result]]], cores: int) -> Iterator[list[Result]]:
    """Do each work in a forked child, `cores` at a time."""
    waiting = list(reversed(works))
    open_: dict[int, int] = {}
    try:
        while waiting or open_:
            while waiting and len(open_) < cores:
                pid, reading = _fork(waiting.pop())
                open_[pid] = reading
            pid = next(iter(open_))  # the oldest; the others go on meanwhile
            with os.fdopen(open_.pop(pid), "rb") as pipe:
                answer = pipe.read()
            os.waitpid(pid, 0)
            if not answer:
                raise RuntimeError("a child of the simulation has died")
            yield pickle.loads(answer)  # noqa: S301  # made by our own child
    finally:
        for pid in open_:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork(work: Callable[[], list[Result]]) -> tuple[int, int]:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    try:
        answer = pickle.dumps(work())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
