"""Simulated histories of APScheduler jobs keep all promises while tenants share the schedulers.

A tenant has a few places. It may have one run at a time for each place.

The checker accepts that a job waits while its tenant has no free place. It notices a run that is lost during this wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from wheel_sched_apscheduler.simulation.checker import JobKind, violations
from wheel_sched_apscheduler.simulation.job_world import JobWorld
from wheel_sched_apscheduler.simulation.places import Places
from wheel_sched_apscheduler.simulation.scenario import draw

from tests.simulation.safeguards.switching import Safeguard, switched_off
from wheel_sched.simulation.runner import run_scenarios
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.trace import Trace
from wheel_sched.store.fair_shares.in_memory import FairSharesInMemory
from wheel_sched.store.fair_shares.rings_in_memory import Rings

pytestmark = pytest.mark.slow

APS = "wheel_sched_apscheduler"
WITHOUT_FAULTS = range(60)
SLOW_CLOCK = 1857
ALL_SLOW = (1232, 1820)
SAFEGUARDS = [
    Safeguard(
        "a free place lets the next job of the tenant go",
        "wheel_sched.store.fair_shares.rings_in_memory:Rings.free",
        "joined += self.join(topic, [fair_key])",
        "pass",
    ),
    Safeguard(
        "a grace of one second, the default, counts as none",
        f"{APS}.run_times:chosen_grace",
        'None if misfire == "lenient" and grace_s == STOCK_GRACE_S else grace_s',
        "grace_s",
    ),
    Safeguard("a job without coalesce has each of its runs", f"{APS}.run_times:_walk", "if coalesce:", "if True:"),
]
CARRIES_PLACES = Safeguard(
    "a long run carries its place to its own item",
    f"{APS}.stores.claims:InFlightClaims._gather_splits",
    "if self._counts_runs:",
    "if False:",
)
LOOKS_AGAIN = Safeguard(
    "a scheduler with a slow clock looks again soon for fair jobs",
    f"{APS}.stores.tracker:ClaimTracker.next_claim_ms",
    "if self._shares and",
    "if False and",
)
USES_A_FREE_PLACE = Safeguard(
    "what the store would hand out now does not wait for a slow clock",
    f"{APS}.stores.tracker:ClaimTracker._send",
    "if head_ms <= answer.now_us // 1000:",
    "if False:",
)


class CountingKind(JobKind):
    """Also reports places as if they were violations.

    It reports a place that is still taken at the end, one that a timeout freed, and one that an item gave to another.
    """

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        carried: list[bytes] = []
        expired: list[bytes] = []
        carry, wake = FairSharesInMemory.carry, FairSharesInMemory.wake

        def noted(self: FairSharesInMemory, key: bytes, other: bytes) -> bool:
            had = carry(self, key, other)
            carried.extend([key] if had and key != other else [])
            return had

        def watched(self: FairSharesInMemory, wanted: int) -> None:
            expired.extend(key for _, key in self.until.up_to(self.shard.now_ms, 100))
            wake(self, wanted)

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


def kinds_broken(seeds: Sequence[int], faults: int | None = 0) -> set[str]:
    """The invariants that these histories break."""
    results = run_scenarios(JobKind(), [draw(seed, faults=faults, fair=True) for seed in seeds])
    return {text.partition(":")[0] for result in results for text in result.violations}


def test_shared_jobs_keep_every_promise() -> None:
    """No job is lost, early or run twice, and no tenant has more runs than places, although processes die and jobs are
    changed. In half of the histories, the jobs of three tenants have tags."""
    assert kinds_broken(range(400), faults=None) == set()


def test_a_freed_place_is_used_at_once_by_a_scheduler_with_a_slow_clock() -> None:
    """The scheduler's clock is 1.5 s behind the store's. When it ends a run, another job of the tenant can use the
    freed place at once.
    """
    assert kinds_broken([SLOW_CLOCK], faults=None) == set()
    with switched_off(USES_A_FREE_PLACE):
        assert kinds_broken([SLOW_CLOCK], faults=None) == {"lost"}


def test_schedulers_that_all_have_slow_clocks_run_fair_jobs_in_time() -> None:
    """All schedulers' clocks are 1.5 s behind the store's. A job is due when both clocks have reached its time, and not
    later.
    """
    assert kinds_broken(ALL_SLOW, faults=None) == set()
    with switched_off(LOOKS_AGAIN):
        assert kinds_broken(ALL_SLOW, faults=None) == {"lost"}


def test_some_jobs_wait_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """In histories without faults, some runs are late because they wait for a place. If the checker does not accept
    this reason, it reports them as lost.
    """
    assert kinds_broken(WITHOUT_FAULTS) == set()
    monkeypatch.setattr(Places, "waits_of", lambda *_: [])
    assert kinds_broken(WITHOUT_FAULTS) == {"lost"}


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda one: one.name)
def test_the_checker_notices_a_run_that_is_lost_while_it_waits(safeguard: Safeguard) -> None:
    """A run that waited may be merged or skipped only as its job's settings say. There are no faults, so runs are late
    only because they wait for a place."""
    with switched_off(safeguard):
        assert "lost" in kinds_broken(WITHOUT_FAULTS)


def test_the_checker_notices_a_cap_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rings, "occupy", lambda *_: None)
    assert "cap" in kinds_broken(WITHOUT_FAULTS)


def test_the_checker_notices_a_long_run_that_loses_its_place() -> None:
    """The item of a long run is stored beside the item of its job, and has the place under its own id."""
    with switched_off(CARRIES_PLACES):
        assert kinds_broken(WITHOUT_FAULTS) == {"cap"}


def test_places_are_carried_and_become_free() -> None:
    """Without faults, no place is still taken at the end, and none becomes free by a timeout. The items of long runs
    take over the places of the items of their jobs.
    """
    results = run_scenarios(CountingKind(), [draw(seed, faults=0, fair=True) for seed in range(20)])
    found = [text.partition(":")[0] for result in results for text in result.violations]
    assert set(found) == {"carried"}
    assert len(found) > 20
