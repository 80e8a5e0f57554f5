"""A publisher that is slow or never returns: leases, the publish timeout and back-pressure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.dispatcher import Batch
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.settle import Done

if TYPE_CHECKING:
    from conftest import FailingCalls, World

    from wheel_sched.store.core.delay_store import DelayStore

LEASE_MS = 3_000
PATIENCE_S = 40


class Gate:
    """Publishers wait at this gate until the test opens it."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, *_: object) -> None:
        self.entered.release()
        assert self.opened.wait(PATIENCE_S), "the gate was never opened"

    def wait_for_one(self) -> None:
        assert self.entered.acquire(timeout=PATIENCE_S), "no publisher came to the gate"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def test_a_slow_publisher_keeps_its_lease(world: World, gate: Gate) -> None:
    """While a publisher is busy for twenty lease times, no other dispatcher gets its batch. Then the batch is
    settled once."""
    world.receiver.before = gate
    world.put("m0", "m1")
    dispatcher = world.dispatcher(lease_ms=LEASE_MS, publish_timeout_ms=10 * 60_000)
    gate.wait_for_one()
    rival = world.handle()
    for _ in range(60):
        world.advance(LEASE_MS // 3)
        assert rival.claim(10).items == []
        assert rival.counts().lease_head_ms == world.now_ms + LEASE_MS
    gate.opened.set()
    world.received(2)
    counts = world.store.counts()
    assert (counts.happened("completed"), counts.happened("lapsed"), dispatcher.stats.stale) == (2, 0, 0)


def test_a_batch_out_of_time_is_settled_with_the_answers_there_are(world: World, gate: Gate) -> None:
    """At the publish timeout answered items are settled, and the others are in doubt and released. Later answers
    are ignored."""

    def answer(item: Claimed) -> Done:
        if item.id == "m2" and len(world.receiver.batches) == 1:
            gate()
        return Done(item.id)

    world.receiver.answer = answer
    world.put("m0", "m1", "m2", "m3")
    dispatcher = world.dispatcher(lease_ms=LEASE_MS, publish_timeout_ms=5_000, backoff_ms=200, workers=2)
    gate.wait_for_one()
    world.advance(4_999)
    assert (dispatcher.stats.published, dispatcher.stats.in_flight) == (0, 4)
    world.advance(1)
    world.until(lambda: dispatcher.stats.in_flight == 0)
    assert (dispatcher.stats.published, dispatcher.stats.in_doubt, dispatcher.stats.failed) == (2, 2, 2)
    assert [world.state(f"m{n}") for n in range(4)] == [None, None, "due", "due"]
    gate.opened.set()
    world.received(4)  # the late answers
    assert (dispatcher.stats.published, dispatcher.stats.stale) == (2, 0)
    assert [world.state(f"m{n}") for n in range(4)] == [None, None, "due", "due"]
    world.advance(200)
    world.received(6)
    assert sorted(world.receiver.ids[4:]) == ["m2", "m3"]
    assert (dispatcher.stats.published, dispatcher.stats.in_doubt) == (4, 2)


def test_a_timeout_shorter_than_the_lease_is_kept_to_the_millisecond(world: World, gate: Gate) -> None:
    """A publish timeout of 700 ms ends a batch after 700 ms, although its lease of a minute is extended only later."""
    world.receiver.before = lambda batch: gate() if len(world.receiver.batches) == 1 else None
    world.put("m")
    dispatcher = world.dispatcher(lease_ms=60_000, publish_timeout_ms=700, workers=2)
    gate.wait_for_one()
    world.advance(699)
    assert dispatcher.stats.in_flight == 1
    world.advance(1)
    world.until(lambda: dispatcher.stats.in_doubt == 1)


def test_claims_stop_when_enough_is_in_flight(world: World, gate: Gate) -> None:
    """If the broker is stuck, a dispatcher claims at most `max_in_flight` items. Other dispatchers can claim the
    remaining ones."""
    world.receiver.before = gate
    world.put(*(f"m{n:03}" for n in range(500)))
    dispatcher = world.dispatcher(batch=30, max_in_flight=100, workers=10)
    world.until(lambda: dispatcher.stats.in_flight == 100)
    world.advance(1_000)
    assert dispatcher.stats.in_flight == 100
    assert world.store.counts().sizes["leased"] == 100
    assert len(world.handle().claim(500).items) == 400
    claims = dispatcher.stats.claims
    world.advance(1_000)
    assert dispatcher.stats.claims == claims
    gate.opened.set()
    world.received(100)


def test_a_busy_worker_is_given_nothing_more(world: World, gate: Gate) -> None:
    """While all workers are busy, further batches stay in the store for idle dispatchers. So after a kill, at most one
    batch per worker is published twice."""
    world.receiver.before = gate
    world.put(*(f"m{n:03}" for n in range(500)))
    dispatcher = world.dispatcher(batch=10, workers=2)
    world.until(lambda: dispatcher.stats.in_flight == 20)
    world.calm()
    assert (dispatcher.stats.in_flight, dispatcher.stats.claims) == (20, 2)
    gate.opened.set()
    world.received(500)
    assert len(set(world.receiver.ids)) == 500


def test_the_bound_holds_over_all_shards_together(wide: World, gate: Gate) -> None:
    """`max_in_flight` bounds the items of all eight shards together, and items of every shard are claimed early."""
    wide.receiver.before = gate
    wide.put(*(f"m{n:03}" for n in range(400)))
    dispatcher = wide.dispatcher(batch=20, max_in_flight=50, workers=10)
    wide.until(lambda: dispatcher.stats.in_flight >= 50)
    wide.calm()
    assert dispatcher.stats.in_flight == 50
    gate.opened.set()
    wide.received(400)
    shards = [batch.claim.shard for batch in wide.receiver.batches]
    first_turns = shards[: len(shards) // 2]
    assert set(first_turns) == set(range(8))


def test_a_settlement_that_gets_no_answer_is_repeated_without_haste(
    world: World, watch: Callable[[DelayStore], FailingCalls]
) -> None:
    """The store does not answer a settlement for longer than the publish timeout.

    Meanwhile the lease is extended at most once in each third of the lease time.
    """
    calls = watch(world.store)
    calls.failures["settle"] = [StoreUnavailable("away")] * 8
    world.put("m")
    dispatcher = world.dispatcher(lease_ms=LEASE_MS, publish_timeout_ms=1_000)
    world.until(lambda: dispatcher.stats.store_errors == 1)
    for _ in range(300):
        world.advance(100)
    assert calls.failures["settle"] == []
    assert (dispatcher.stats.published, dispatcher.stats.in_doubt, dispatcher.stats.stale) == (1, 0, 0)
    assert calls.count("extend") <= 30_000 // (LEASE_MS // 3)
    assert world.store.counts().happened("lapsed") == 0
    assert len(world.receiver.received) == 1


def test_after_a_lost_lease_the_answers_are_stale(world: World, gate: Gate) -> None:
    """A dispatcher's lease ended, and another dispatcher claimed the items. The first one's settlement changes
    nothing and counts as stale."""
    world.receiver.before = lambda batch: gate() if len(world.receiver.batches) == 1 else None
    world.put("m0", "m1")
    slow = world.dispatcher(lease_ms=LEASE_MS)
    gate.wait_for_one()
    world.clock._now_ns += 2 * LEASE_MS * 1_000_000  # as if its process had been stopped: no thread wakes
    claim = world.handle().claim(10)
    assert [item.id for item in claim.items] == ["m0", "m1"]
    gate.opened.set()
    world.until(lambda: slow.stats.stale == 2)
    assert world.store.counts().sizes["leased"] == 2
    assert world.handle().settle(claim, [Done("m0"), Done("m1")]).outcomes == ["o", "o"]
    assert world.store.counts().happened("completed") == 2


def test_writes_into_a_late_batch_have_no_effect(world: World, gate: Gate) -> None:
    """What a publisher writes into a batch after its timeout changes no settlement."""
    batches: list[Batch] = []

    def hang(batch: Batch) -> None:
        batches.append(batch)
        if len(batches) == 1:
            gate()

    world.receiver.before = hang
    world.put("m")
    dispatcher = world.dispatcher(publish_timeout_ms=500, workers=2)
    gate.wait_for_one()
    world.advance(500)
    world.until(lambda: dispatcher.stats.in_flight == 0)
    answers: list[Any] = [None, "rubbish", Done("another item")]
    batches[0].answers[:] = answers
    world.advance(200)
    world.until(lambda: dispatcher.stats.published == 1)
