"""The world of fair topics: histories keep all promises, and its checker notices when a claim goes by due time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retry_topic.simulation.checker import RetryFairKind
from wheel_sched.store.fair_shares.rings_in_memory import Rings
from wheel_sched.store.fair_shares.taking_in_memory import RingEntry, Taking

if TYPE_CHECKING:
    import pytest

KIND = RetryFairKind()
SEEDS = 30


def found(seeds: int = SEEDS) -> list[str]:
    """The promises that the histories of the first seeds break."""
    return [text for seed in range(seeds) for text in KIND.run(KIND.draw(seed))[1]]


def test_histories_keep_every_promise() -> None:
    assert found() == []


def test_the_checker_notices_a_claim_by_due_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With picking by due time, the key with many old retries is served alone while others wait."""

    def pick_by_due(
        self: Taking, topic: str, entries: list[RingEntry], need: int, until_ms: int, out: list[tuple[int, bytes]]
    ) -> bool:
        for entry in entries:
            self._load(topic, entry, need, until_ms)
        rest = sorted((member, entry.key) for entry in entries for member in entry.members[: max(0, entry.left)])
        for (due_ms, key, _), fair_key in rest[:need]:
            entry = next(entry for entry in entries if entry.key == fair_key)
            out.append((due_ms, key))
            entry.taken, entry.left = entry.taken + 1, entry.left - 1
        return len(rest) > need

    monkeypatch.setattr(Taking, "_pick_from", pick_by_due)
    assert any(text.startswith("share:") for text in found(200))


def test_the_checker_notices_a_cap_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rings, "occupy", lambda *_: None)
    assert any(text.startswith("cap:") for text in found(200))
