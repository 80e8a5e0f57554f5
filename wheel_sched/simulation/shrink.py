"""Makes a failing scenario smaller: fewer steps, simpler steps, and still the same kind of violation.

Without one of its steps, a scenario interleaves its threads in another way, so the failure may not occur. Therefore
this module runs each smaller scenario with several seeds of the scheduler.
Source: delta debugging (Zeller, Hildebrandt).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wheel_sched.simulation.runner import Kind, Result, first_failing, run_scenarios
from wheel_sched.simulation.scenario import HandIn, Scenario, Step

ORDERS = 6  # orders of the threads that each smaller scenario is tried with


def shrink(kind: Kind, failed: Result, *, most_tries: int = 400) -> Result:
    """Return the smallest failing scenario that the search finds, with its trace.

    Args:
        kind: the kind of world.
        failed: a result with violations.
        most_tries: how many smaller scenarios to try. Defaults to 400.
    """
    wanted = _kinds(failed)
    best = failed
    tries = 0
    size = max(1, len(best.scenario.steps) // 2)
    while tries < most_tries:
        steps = best.scenario.steps
        smaller: list[Sequence[Step]] = [
            steps[:start] + steps[start + size :] for start in range(0, len(steps), size) if len(steps) > size
        ]
        if size == 1:
            smaller += _simpler(steps)
        for candidate in smaller:
            tries += 1
            found = _fails(kind, best.scenario, candidate, wanted)
            if found is not None:
                best = found
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
            continue
        size = min(size, max(1, len(best.scenario.steps) // 2))
    (shown,) = run_scenarios(kind, [best.scenario], with_trace=True)
    return shown


def _kinds(result: Result) -> set[str]:
    return {violation.partition(":")[0] for violation in result.violations}


def _fails(kind: Kind, scenario: Scenario, steps: Sequence[Step], wanted: set[str]) -> Result | None:
    orders = [scenario.order, *range(ORDERS - 1)]
    tried = [scenario.with_steps(steps, order) for order in orders]
    return first_failing(kind, tried, lambda result: bool(_kinds(result) & wanted))


def _simpler(steps: tuple[Step, ...]) -> list[Sequence[Step]]:
    """Copies of `steps`, in each of which one step is simpler."""
    found: list[Sequence[Step]] = []
    for place, step in enumerate(steps):
        for simple in _simpler_step(step):
            found.append((*steps[:place], simple, *steps[place + 1 :]))
    return found


def _simpler_step(step: Step) -> list[Step]:
    if not isinstance(step, HandIn):
        return []
    simpler = [replace(step, delay=0), replace(step, lasts=0), replace(step, fails=0), replace(step, kind="plain")]
    return [one for one in simpler if one != step]
