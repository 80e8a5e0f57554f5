"""Dispatcher processes are killed during a batch, stopped for longer than their lease, or told to end.

A point is a moment in the work on a batch, such as just before the batch is published. processes/dispatch.py lists the
points. The simulator kills and stops processes at all these moments, and checks that no message is lost or doubled
(docs/simulator.md). So most of these tests use one point only. The simulator neither claims batches ahead nor pushes,
so the tests for these two features use more points.

The killed process publishes one batch at a time, so at most one batch can be doubled. Before it dies, it records that
it has reached the point. A test whose point was not reached fails.
"""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Process, Stage

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.slow]

MESSAGES, BATCH, LEASE_MS = 400, 100, 2_000
ONE_BATCH = {"batch": BATCH, "lease_ms": LEASE_MS}  # one worker: it publishes one batch at a time

PATIENCE_MS = 20_000  # long, because the machine may be busy; a batch that nobody takes over never comes


def victim(stage: Stage, point: str, number: signal.Signals, **settings: object) -> Process:
    return stage.start("victim", at=point, signal=number, config=ONE_BATCH, **settings)


def test_a_killed_dispatchers_batch_is_taken_over_when_its_lease_ends(stage: Stage) -> None:
    """A dispatcher is killed when it has published half of a batch. No message is lost, and only that half is
    doubled."""
    ids = stage.schedule(MESSAGES)
    killed = victim(stage, "half_publish", signal.SIGKILL)
    reached = killed.wait_reached()
    killed.wait_killed()
    assert reached.split()[0] == "half_publish"
    died_ms = stage.counts().now_us // 1000
    stage.wait_in_flight(BATCH)

    survivor = stage.start("survivor", config={**ONE_BATCH, "lease_ms": 10_000})
    stage.wait_drained()
    arrivals = stage.judged(ids, most_duplicates=BATCH // 2)
    stats = survivor.stop()
    counts = stage.counts()
    assert counts.happened("completed") == MESSAGES
    assert counts.happened("lapsed") == BATCH
    assert len(arrivals) - MESSAGES == BATCH // 2
    assert stats["published"] == MESSAGES
    takeover_ms = max(arrival.at_ms for arrival in arrivals if arrival.by == "survivor") - died_ms
    stage.record("taken over after ms", takeover_ms)
    assert takeover_ms <= LEASE_MS + PATIENCE_MS


# A dispatcher with an instant publisher claims the next batch while it publishes one. For each point at which it is
# killed: how many messages are doubled, and how many are in flight after its death.
KILLED_AHEAD_AT = {
    "second_claim_sent": (0, 2 * BATCH),
    "half_publish": (BATCH // 2, 2 * BATCH),
    "after_publish": (BATCH, 2 * BATCH),
    "before_settle": (BATCH, 2 * BATCH),
    "settle_sent": (0, BATCH),  # the server executes a call that was sent, even if the client is dead
    "after_settle": (0, BATCH),
}


@pytest.mark.parametrize("point", KILLED_AHEAD_AT)
def test_a_batch_claimed_ahead_is_not_doubled(stage: Stage, point: str) -> None:
    """A dispatcher dies while it publishes one batch and has claimed the next. No message of the next batch is
    doubled."""
    doubled, in_flight = KILLED_AHEAD_AT[point]
    ids = stage.schedule(MESSAGES)
    killed = victim(stage, point, signal.SIGKILL, instant=True)
    assert killed.wait_reached().split()[0] == point
    killed.wait_killed()
    stage.wait_in_flight(in_flight)
    stage.start("survivor", config={**ONE_BATCH, "lease_ms": 30_000}, instant=True)
    stage.wait_drained()
    arrivals = stage.judged(ids, most_duplicates=doubled)
    assert len(arrivals) - MESSAGES == doubled
    assert stage.counts().happened("lapsed") == in_flight
    assert stage.counts().happened("completed") == MESSAGES


@pytest.mark.parametrize("point", ["before_push", "after_push"])
def test_a_dispatcher_killed_around_a_push_doubles_nothing(stage: Stage, point: str) -> None:
    """A dispatcher is killed before or after its call that pushes a batch. The server did the whole push or nothing of
    it.

    So no message is doubled, and none is under a lease.
    """
    ids = stage.schedule(MESSAGES, push=True)
    killed = victim(stage, point, signal.SIGKILL, push=True)
    assert killed.wait_reached().split()[0] == point
    killed.wait_killed()
    assert stage.counts().happened("completed") == (BATCH if point == "after_push" else 0)
    stage.start("survivor", push=True, config=ONE_BATCH)
    stage.wait_drained()
    stage.judged(ids, most_duplicates=0)
    assert stage.counts().happened("lapsed") == 0


def test_a_process_stopped_for_longer_than_its_lease_changes_nothing_afterwards(stage: Stage) -> None:
    """A stopped dispatcher's lease ends, and another dispatcher delivers the batch. When the stopped one continues,
    it settles the batch too late, without effect."""
    survivor = stage.start("survivor", config={**ONE_BATCH, "lease_ms": 10_000})
    zombie = victim(stage, "before_settle", signal.SIGSTOP)
    survivor.wait_ready()
    zombie.wait_ready()
    survivor.send(signal.SIGSTOP)  # so that the zombie, not the survivor, claims the batch
    ids = stage.schedule(MESSAGES, in_ms=100)
    assert zombie.wait_reached().split()[0] == "before_settle"
    survivor.send(signal.SIGCONT)
    stage.wait_drained()
    before = stage.counts()
    assert set(ids) == {arrival.id for arrival in stage.arrivals()}

    zombie.send(signal.SIGCONT)
    stats = zombie.stop()
    after = stage.counts()
    assert stats["stale"] == BATCH
    assert (stats["published"], stats["in_flight"]) == (0, 0)
    assert (after.now, after.ever, after.sizes) == (before.now, before.ever, before.sizes)
    assert (after.happened("completed"), after.happened("lapsed")) == (MESSAGES, BATCH)
    stage.judged(ids, most_duplicates=BATCH)


def test_a_graceful_end_doubles_nothing(stage: Stage) -> None:
    """A dispatcher that is asked to end settles its batch first. Another dispatcher delivers the remaining messages
    at once.
    """
    ids = stage.schedule(MESSAGES)
    first = stage.start("first", config={"batch": BATCH, "lease_ms": 30_000}, pause_ms=300)
    first.wait_ready()
    began_s = time.monotonic()
    while not stage.arrivals():
        assert time.monotonic() < began_s + 20
        time.sleep(0.005)  # until the dispatcher is in the middle of a batch
    stats = first.stop()
    done = stage.counts().happened("completed")
    assert (stats["in_flight"], stats["in_doubt"], stats["stale"]) == (0, 0, 0)
    assert stats["published"] == done
    assert BATCH <= done < MESSAGES
    assert stage.counts().sizes["leased"] == 0
    stage.start("second", config=ONE_BATCH)
    stage.wait_drained()
    stage.judged(ids, most_duplicates=0)


def test_kills_at_random_moments_lose_nothing(stage: Stage) -> None:
    """Six of eight dispatchers are killed one after the other. Only the batch that each one had in flight may be
    doubled."""
    kills, rng = 6, random.Random(5)
    config = {**ONE_BATCH, "lease_ms": 3_000}
    running = [stage.start(f"d{n}", config=config, pause_ms=200) for n in range(8)]
    for process in running:
        process.wait_ready()
    ids = stage.schedule(8_000, in_ms=300)
    time.sleep(0.5)  # until all dispatchers are at work
    for process in running[:kills]:
        process.kill()
        time.sleep(rng.random() * 0.15)  # so that the next dispatcher is killed at a random moment of its batch
    assert stage.counts().sizes["due"] > 0, "all messages were claimed before the last kill"
    stage.wait_drained()
    stage.judged(ids, most_duplicates=kills * BATCH)
    lapsed = stage.counts().happened("lapsed")
    stage.record("lapsed", lapsed)
    assert 0 < lapsed <= kills * BATCH
