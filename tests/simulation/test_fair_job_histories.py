"""The world of jobs keeps all its promises while due jobs are shared between tenants, and no place stays taken."""

from __future__ import annotations

import pytest
from wheel_sched_apscheduler.simulation.checker import JobKind, violations
from wheel_sched_apscheduler.simulation.job_world import JobWorld
from wheel_sched_apscheduler.simulation.scenario import draw

from wheel_sched.simulation.runner import run_scenarios
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.trace import Trace
from wheel_sched.store.fair_shares.in_memory import FairSharesInMemory

pytestmark = pytest.mark.slow


class CountingKind(JobKind):
    """Also reports, as if they were violations, which places are still taken, ran out of time, and were carried."""

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        carried: list[bytes] = []
        expired: list[bytes] = []
        carry, wake = FairSharesInMemory.carry, FairSharesInMemory.wake

        def noted(self: FairSharesInMemory, key: bytes, other: bytes) -> bool:
            had = carry(self, key, other)
            carried.extend([key] if had and key != other else [])
            return had

        def watched(self: FairSharesInMemory) -> None:
            expired.extend(key for _, key in self.until.up_to(self.shard.now_ms, 100))
            wake(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FairSharesInMemory, "carry", noted)
            patch.setattr(FairSharesInMemory, "wake", watched)
            history = JobWorld(scenario)
            history.run()
        rooms = [shard.room(FairSharesInMemory) for shard in history.store.contents.backend.shards]  # type: ignore[attr-defined]
        found = [f"taken: {key!r}" for room in rooms for key in room.places]
        found += [f"expired: {key!r}" for key in expired]
        found += [f"carried: {key!r}" for key in carried]
        return history.world.trace, [*violations(history), *found], history.world.scheduler.steps


def test_shared_jobs_keep_every_promise() -> None:
    """No job is lost, early or run twice, whatever dies and whatever is changed. In half of the histories, the jobs of
    three tenants have tags."""
    results = run_scenarios(JobKind(), [draw(seed, fair=True) for seed in range(40)])
    assert [result.violations for result in results] == [()] * 40


def test_places_are_carried_and_become_free() -> None:
    """Without faults, no place is left, and none is free only because its time is over. Long runs of
    recurring jobs have carried theirs."""
    results = run_scenarios(CountingKind(), [draw(seed, faults=0, fair=True) for seed in range(20)])
    found = [text.partition(":")[0] for result in results for text in result.violations]
    assert set(found) == {"carried"}
    assert len(found) > 20
