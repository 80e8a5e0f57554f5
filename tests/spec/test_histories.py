"""The models of the protocol allow everything that the simulator's histories do in the store."""

from __future__ import annotations

import pytest

from retry_topic.simulation.checker import RetryKind, RetryLogKind
from retry_topic.simulation.retry_world import RetryWorld
from tests.spec.admission import why_refused
from tests.spec.journal import events_of
from wheel_sched.simulation.runner import run_scenarios
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.trace import Trace

pytestmark = [pytest.mark.slow, pytest.mark.proof]


def judged(scenario: Scenario) -> tuple[Trace, list[str], int]:
    """Run a history. Returns its trace, why the models refuse it (at most one text), and the number of events."""
    history = RetryWorld(scenario)
    history.run()
    events = list(events_of(history.store.journal, len(history.store.backend.shards)))
    refused = why_refused(events, publishing=False)
    if not {"accept", "claim", "settle"} <= {event.kind for event in events} and not history.store.restarts:
        refused = refused or "nothing was claimed"
    return history.world.trace, [refused] if refused else [], len(events)


class Retry(RetryKind):
    """The simulated world whose retry topics are queues. The models of the protocol judge each history."""

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        return judged(scenario)


class RetryLog(RetryLogKind):
    """The simulated world whose retry topics are logs with transactions, like those of Kafka. The models of the
    protocol judge each history."""

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        return judged(scenario)


@pytest.mark.parametrize("kind", [Retry(), RetryLog()], ids=["retry", "retry-log"])
def test_the_models_admit_the_histories_of_the_simulator(kind: RetryKind) -> None:
    results = run_scenarios(kind, [kind.draw(seed) for seed in range(60)])
    assert [result.violations for result in results] == [()] * 60
