"""Runs many histories (simulated runs, one for each seed) on several cores, and collects their violations.

Each batch of histories runs in a child process that ends without cleaning up, because simulated processes that are
killed leave suspended greenlets behind (see `scheduler`). String hashes are the same in every run, because the command
starts itself again with PYTHONHASHSEED=0.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Protocol, TypeVar

from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.scheduler import TooManySteps
from wheel_sched.simulation.substitution import substituted
from wheel_sched.simulation.trace import Trace

T = TypeVar("T")

BATCH = 40  # histories per child process; a history leaves about a megabyte in memory
HASH_SEED = "0"
STUCK_S = 60  # processor time, in seconds; a usual history takes some hundredths of a second


class Stuck(BaseException):
    """A scenario uses too much processor time. A `BaseException`, so that simulated code does not catch it."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one history.

    `violations`: the broken invariants. `digest`: a hash of the trace. `steps`: the number of the scheduler's steps.
    `virtual_ns`: the time of the last event. `trace`: None unless the caller asked for it.
    """

    scenario: Scenario
    violations: tuple[str, ...]
    digest: str
    steps: int
    virtual_ns: int = 0
    trace: Trace | None = None


class Kind(Protocol):
    """A kind of simulated system (world): it draws scenarios from seeds, runs them, and checks the invariants."""

    name: str
    packages: Sequence[str]

    def draw(self, seed: int) -> Scenario:
        """Return the scenario that the seed decides."""
        ...

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        """Run a scenario. Returns its trace, its violations of invariants, and the number of the scheduler's steps."""
        ...


def run_one(kind: Kind, scenario: Scenario, *, with_trace: bool = False) -> Result:
    """Run a scenario in this process, inside a `with substituted(...)` block of the caller.

    If the scenario uses more than `STUCK_S` seconds of processor time, the code that runs is interrupted, and the
    result has a violation. If the code does not end even then, or waits in real time, this process prints its stack to
    stderr and exits.
    """
    faulthandler.dump_traceback_later(5 * STUCK_S, exit=True)
    before = signal.signal(signal.SIGVTALRM, _interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_S, STUCK_S / 2)
    try:
        trace, found, steps = kind.run(scenario)
    except TooManySteps as error:
        return Result(scenario, (f"busy: {error}",), "", 0)
    except Stuck as error:
        return Result(scenario, (f"stuck: {error}",), "", 0)
    except Exception:
        return Result(scenario, (f"crashed: {traceback.format_exc()[-2_000:]}",), "", 0)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        faulthandler.cancel_dump_traceback_later()
    ended_ns = trace.events[-1].at_ns if trace.events else 0
    return Result(scenario, tuple(found), trace.digest(), steps, ended_ns, trace if with_trace else None)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Handle the signal of the timer: raise `Stuck` in the code that runs, a task or the checker."""
    where = "".join(traceback.format_stack(frame, limit=6))
    raise Stuck(f"the history does not end within {STUCK_S} s:\n{where}")


def run_scenarios(kind: Kind, scenarios: Sequence[Scenario], *, with_trace: bool = False) -> list[Result]:
    """Run scenarios one after the other in a child process. Returns their results in order."""
    return next(_in_children([partial(_work, kind, scenarios, with_trace=with_trace)], 1))


def first_failing(kind: Kind, scenarios: Sequence[Scenario], fails: Callable[[Result], bool]) -> Result | None:
    """Run scenarios in a child process until `fails` is true for a result. Returns that result, or None."""
    found = next(_in_children([partial(_work, kind, scenarios, until=fails)], 1))
    return found[-1] if found and fails(found[-1]) else None


def run_seeds(kind: Kind, seeds: Sequence[int], *, cores: int | None = None, store: str = "memory") -> Iterator[Result]:
    """Run the histories of these seeds on several cores. The order of the results is not fixed.

    Args:
        kind: the kind of world.
        seeds: the seeds.
        cores: how many child processes run at a time. Defaults to the number of cores.
        store: where the store keeps its items, see `Scenario`. Defaults to "memory".
    """
    batches = [seeds[start : start + BATCH] for start in range(0, len(seeds), BATCH)]
    works = [partial(_work, kind, batch, store=store) for batch in batches]
    for results in _in_children(works, cores or os.cpu_count() or 1):
        yield from results


def _work(
    kind: Kind,
    given: Sequence[int | Scenario],
    *,
    with_trace: bool = False,
    store: str = "memory",
    until: Callable[[Result], bool] | None = None,
) -> list[Result]:
    """Run scenarios in this process. `given` has scenarios, or seeds whose scenarios use `store`.

    `until`: the run ends after the first result for which this function returns true.
    """
    scenarios = [replace(kind.draw(one), store=store) if isinstance(one, int) else one for one in given]
    logging.disable(logging.CRITICAL)
    gc.disable()
    with substituted(kind.packages):
        results: list[Result] = []
        for scenario in scenarios:
            results.append(run_one(kind, scenario, with_trace=with_trace))
            if until is not None and until(results[-1]):
                break
        return results


def in_child(work: Callable[[], T]) -> T:
    """Call `work` in a forked child process, and return what it returns. The child ends without cleaning up.

    Raises:
        RuntimeError: the child process died; its traceback went to stderr.
    """

    def quietly() -> T:
        logging.disable(logging.CRITICAL)
        gc.disable()
        return work()

    return next(_in_children([quietly], 1))


def _in_children(works: Sequence[Callable[[], T]], cores: int) -> Iterator[T]:
    """Call each function in a forked child process of its own, `cores` of them at a time."""
    waiting = list(reversed(works))
    open_: dict[int, int] = {}
    try:
        while waiting or open_:
            while waiting and len(open_) < cores:
                pid, reading = _fork(waiting.pop())
                open_[pid] = reading
            pid = next(iter(open_))  # wait for the oldest child; the others run meanwhile
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


def _fork(work: Callable[[], object]) -> tuple[int, int]:
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
