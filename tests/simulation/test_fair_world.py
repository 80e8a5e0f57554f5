"""Simulated histories of fair topics keep all promises, and the checker notices claims by due time."""

from __future__ import annotations

import pytest

from retry_topic.simulation.checker import RetryFairKind
from retry_topic.simulation.drawing import draw
from wheel_sched.simulation.runner import run_scenarios
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.store.fair_shares.rings_in_memory import Rings
from wheel_sched.store.fair_shares.taking_in_memory import Picked, RingEntry, Taking

pytestmark = pytest.mark.slow

KIND = RetryFairKind()
CAPPED = (2, 21)  # in these histories, without faults, several retries of one key wait at the same time
BY_DUE = (69, 107)


def broken(scenario: Scenario) -> list[str]:
    """The promises that the history of a scenario breaks."""
    return [text for result in run_scenarios(KIND, [scenario]) for text in result.violations]


def test_histories_keep_every_promise() -> None:
    assert [broken(KIND.draw(seed)) for seed in range(8)] == [[]] * 8
    assert [broken(draw(seed, fair=True, faults=0)) for seed in CAPPED] == [[]] * len(CAPPED)


def test_the_checker_notices_a_claim_by_due_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """If claims take messages by due time, only the key with many old retries is served, while others wait."""

    def pick_by_due(
        self: Taking,
        topic: str,
        entries: list[RingEntry],
        quantum: int,
        need: int,
        last: int | None,
        until_ms: int,
        out: list[Picked],
    ) -> bool:
        for entry in entries:
            self._load(topic, entry, need, until_ms)
        rest = sorted((member, entry.key) for entry in entries for member in entry.members[: max(0, entry.left)])
        for (due_ms, key, _), fair_key in rest[:need]:
            entry = next(entry for entry in entries if entry.key == fair_key)
            out.append(Picked(due_ms, key, entry.name))
            entry.taken, entry.left = entry.taken + 1, entry.left - 1
        for entry in entries:
            entry.over = entry.over and len(entry.members) == entry.taken  # a key with more items stays in the ring
        return len(rest) > need

    monkeypatch.setattr(Taking, "_pick_from", pick_by_due)
    assert any(text.startswith("share:") for seed in BY_DUE for text in broken(KIND.draw(seed)))


def test_the_checker_notices_a_cap_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rings, "occupy", lambda *_: None)
    assert any(text.startswith("cap:") for seed in CAPPED for text in broken(draw(seed, fair=True, faults=0)))
