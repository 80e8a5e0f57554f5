"""Simulated histories of periodic tasks keep every promise, and a step that is cut in two is noticed."""

from __future__ import annotations

import pytest
from wheel_sched_celery.simulation.beat_checker import BeatKind

from tests.simulation.safeguards.switching import Safeguard, switched_off
from wheel_sched.simulation.runner import run_scenarios, run_seeds

pytestmark = pytest.mark.slow

KIND = BeatKind()
CUT = Safeguard(
    "an entry waits again and its occurrence is stored in one step",
    "wheel_sched_celery.beat.ticking:Ticker._sent",
    "answer = self._waits(item, new, items)",
    "from wheel_sched.simulation.scheduler import running;"
    " later = lambda: (running.scheduler.sleep_ns(100_000_000), self._wheel.call(lambda store: store.schedule(items)));"
    " self._wheel.thread.submit(later);"
    " answer = self._waits(item, new)",
    "celery-beat",
)


def test_histories_keep_every_promise() -> None:
    """Each occurrence runs once, none is missed under `all`, none is early, and none comes after the removal."""
    results = list(run_seeds(KIND, range(24)))
    assert [(one.scenario.seed, one.violations) for one in results if one.violations] == []


@pytest.mark.proof
def test_more_histories_keep_every_promise() -> None:
    """As above."""
    results = list(run_seeds(KIND, range(1_000, 1_080)))
    assert [(one.scenario.seed, one.violations) for one in results if one.violations] == []


def test_a_seed_gives_the_same_history_again() -> None:
    """The operator, the ticks and the runs happen at the same virtual times."""
    scenario = KIND.draw(1)
    first, second = run_scenarios(KIND, [scenario] * 2)
    assert first.digest == second.digest


@pytest.mark.proof
def test_the_checker_notices_when_the_step_is_cut_in_two() -> None:
    """A worker that is killed between the two halves loses an occurrence."""
    with switched_off(CUT):
        results = list(run_seeds(KIND, range(40)))
    assert [one.violations for one in results if any(line.startswith("missed") for line in one.violations)]
