"""Four dispatcher processes race for 20,000 messages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Stage

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.slow]

MESSAGES, PROCESSES = 20_000, 4


@pytest.mark.parametrize("push", [False, True], ids=["claim-publish-settle", "one-script push"])
def test_each_message_is_delivered_once_and_each_process_does_its_share(stage: Stage, push: bool) -> None:
    """No message is lost, doubled or early at the receiver. Each process delivers at least a tenth of all messages."""
    names = [f"d{n}" for n in range(PROCESSES)]
    config = {"batch": 100}
    processes = [stage.start(name, push=push, config=config) for name in names]
    for process in processes:
        process.wait_ready()
    ids = stage.schedule(MESSAGES, in_ms=2_000, push=push)
    stage.wait_drained()
    stats = [process.stop() for process in processes]
    arrivals = stage.judged(ids, most_duplicates=0)
    shares = Counter(arrival.by for arrival in arrivals)
    stage.record("shares", {name: shares[name] / MESSAGES for name in names})
    stage.record("seconds", (arrivals[-1].at_ms - arrivals[0].at_ms) / 1000)
    assert min(shares[name] for name in names) >= MESSAGES // 10
    assert [entry["published"] for entry in stats] == [shares[name] for name in names]
    counts = stage.counts()
    assert (counts.happened("completed"), counts.happened("lapsed")) == (MESSAGES, 0)
