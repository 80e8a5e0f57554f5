"""Simulated histories of periodic tasks keep every promise. The checker notices when a step is cut in two."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wheel_sched_celery.simulation.beat_checker import BeatKind, violations
from wheel_sched_celery.simulation.beat_world import HOURS_MS, BeatWorld

from tests.simulation.safeguards.switching import Safeguard, switched_off
from wheel_sched.simulation.runner import run_scenarios, run_seeds
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.trace import Trace

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
    """Each occurrence runs once, none is missed under `all`, none is early, and none comes after its entry is removed.

    In some histories the store's clock steps forward or back, by less than a second as with NTP, or by hours.
    """
    results = list(run_seeds(KIND, range(24)))
    assert [(one.scenario.seed, one.violations) for one in results if one.violations] == []
    steps = {fault.amount for one in results for fault in one.scenario.faults if fault.kind == "step-clock"}
    assert {min(steps), max(steps)} == {-HOURS_MS, HOURS_MS}
    assert {amount > 0 for amount in steps if abs(amount) < 1_000} == {True, False}


@pytest.mark.proof
def test_more_histories_keep_every_promise() -> None:
    """The test above, with other seeds."""
    results = list(run_seeds(KIND, range(1_000, 1_080)))
    assert [(one.scenario.seed, one.violations) for one in results if one.violations] == []


def test_a_seed_gives_the_same_history_again() -> None:
    """Two runs of one seed have the same changes, ticks and task runs at the same virtual times."""
    scenario = KIND.draw(1)
    first, second = run_scenarios(KIND, [scenario] * 2)
    assert first.digest == second.digest


class Altered(BeatKind):
    """Runs a history, alters the record of one task run in three ways, and returns what the checker says of each."""

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        """Overrides `BeatKind.run`."""
        history = BeatWorld(scenario)
        history.run()
        kept = list(history.ticks)
        all_of = {life.name for life in history.lives.values() if life.catch_up == "all" and not life.changed}
        one = [tick for tick in kept if tick.name == min(all_of)][1]
        at = kept.index(one)
        found = violations(history)
        for other in ([], [one, one], [replace(one, began_wall_ms=one.due_ms - 1)]):
            history.ticks = [*kept[:at], *other, *kept[at + 1 :]]
            found += [line.partition(":")[0] for line in violations(history)]
        return history.world.trace, found, history.world.scheduler.steps


def test_the_checker_counts_what_is_missed_doubled_and_early() -> None:
    """The checker reports a violation when a task run of a correct history is removed, doubled, or begun too early."""
    scenario = next(one for seed in range(99) if not (one := KIND.draw(seed)).faults)
    (result,) = run_scenarios(Altered(), [scenario])
    assert list(result.violations) == ["missed", "repeated", "early"]


@pytest.mark.proof
def test_the_checker_notices_when_the_step_is_cut_in_two() -> None:
    """Without the safeguard, one step becomes two. If a worker is killed between them, an occurrence is lost."""
    with switched_off(CUT):
        results = list(run_seeds(KIND, range(40)))
    assert [one.violations for one in results if any(line.startswith("missed") for line in one.violations)]
