"""The store's server is killed and restarted with its append-only file. Acknowledged messages are delivered.

The dispatcher reconnects by itself. It publishes to another server, which keeps running. Some messages are due before
the kill, some after the restart.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.errors import StoreError
from wheel_sched.store.core.items import Item

if TYPE_CHECKING:
    from conftest import Stage

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.slow]

BATCH, AT_ONCE = 50, 20
SOON_MS = 50


class Producer:
    """A thread that stores messages, a few per call, and records which were acknowledged and when."""

    def __init__(self, stage: Stage, later_ms: int) -> None:
        self._stage = stage
        self._later_ms = later_ms
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: dict[str, float] = {}
        self.in_doubt: set[str] = set()

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.002):
            now_ms = time.time_ns() // 1_000_000
            numbers = [next(self._numbers) for _ in range(AT_ONCE)]
            items = [Item(f"m{n}", now_ms + (self._later_ms if n % 2 else SOON_MS), b"", "out") for n in numbers]
            try:
                self._stage.store.schedule(items)
            except StoreError:
                self.in_doubt.update(item.id for item in items)
                continue
            acknowledged_s = time.monotonic()
            self.acknowledged.update((item.id, acknowledged_s) for item in items)


@pytest.mark.parametrize(
    ("durability", "fsync", "run_s", "window_s"),
    [("fsync", "always", 1.0, 0.0), ("everysec", "everysec", 2.5, 2.0)],
    ids=["fsync", "everysec"],
)
def test_what_was_acknowledged_survives_the_servers_kill(
    make_stage: Callable[..., Stage], durability: str, fsync: str, run_s: float, window_s: float
) -> None:
    """With `durability="fsync"` no acknowledged message is lost. With "everysec" only those acknowledged in the
    last 2 s before the kill may be lost."""
    stage = make_stage(fsync=fsync, durability=durability, apart=True)
    dispatcher = stage.start(config={"batch": BATCH, "lease_ms": 3_000})
    dispatcher.wait_ready()
    with Producer(stage, later_ms=int(1_000 * run_s) + 500) as producer:
        time.sleep(run_s)  # the producer stores messages that must survive
        killed_s = time.monotonic()
        stage.server.sigkill()
        killed_ms = time.time_ns() // 1_000_000
        time.sleep(0.2)  # so that the calls of the producer and of the dispatcher fail
        stage.server.restart()
        restarted_s = time.monotonic()
        time.sleep(0.5)  # the producer stores more messages
    assert {at_s < killed_s for at_s in producer.acknowledged.values()} == {True, False}, "nothing after the restart"
    safe = {i for i, at_s in producer.acknowledged.items() if not killed_s - window_s <= at_s <= killed_s}
    assert any(producer.acknowledged[i] < killed_s for i in safe), "no message was acknowledged early enough"

    stage.wait_drained()
    arrivals = stage.arrivals()
    arrived = {arrival.id for arrival in arrivals}
    lost = producer.acknowledged.keys() - arrived
    doubled = len(arrivals) - len(arrived)
    stage.record("acknowledged, lost, doubled", (len(producer.acknowledged), len(lost), doubled))
    assert safe - arrived == set()
    assert arrived - producer.acknowledged.keys() <= producer.in_doubt
    assert [arrival for arrival in arrivals if arrival.at_ms < arrival.due_ms] == []
    at_risk = sum(arrival.at_ms >= killed_ms - window_s * 1_000 for arrival in arrivals if arrival.at_ms <= killed_ms)
    assert doubled <= BATCH + (at_risk if window_s else 0)

    first_after_ms = min(arrival.at_ms for arrival in arrivals if arrival.at_ms > killed_ms)
    stage.record("delivering again after ms", first_after_ms - killed_ms)
    assert first_after_ms - killed_ms <= (restarted_s - killed_s) * 1_000 + 25_000  # it pauses for 5 s at most
    stats: dict[str, Any] = dispatcher.stop()
    assert stats["store_errors"] > 0
