"""Batches in flight: late answers, the publish timeout, and a drain that waits for batches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from wheel_sched.dispatcher import Batch, DispatcherConfig, DispatcherStats, Failed, PublisherTraits, SharedLeases
from wheel_sched.dispatcher import in_flight as in_flight_module
from wheel_sched.dispatcher.in_flight import InFlightBatches
from wheel_sched.purgatory import DelayedJoin, DelayedOperation, DelayedProduce
from wheel_sched.store import Claim, Claimed, DelayStore, Done, Outcome, Settled, Settlement
from wheel_sched.testing import VirtualClock

if TYPE_CHECKING:
    from conftest import World


class Later:
    """A publisher that returns at once. Its broker acknowledges when the test says so."""

    traits = PublisherTraits(acknowledges_later=True)

    def __init__(self) -> None:
        self.sent: list[Batch] = []
        self.there = threading.Event()

    def publish(self, batch: Batch) -> None:
        self.sent.append(batch)
        self.there.set()

    def refuse(self, item: Claimed, reason: str) -> Failed:
        return Failed(reason)


def batch_of(*ids: str) -> Batch:
    return Batch(Claim(0, 1, 0, 1, None, None, []), [Claimed(i, 0, 1, "", b"") for i in ids])


def test_a_batch_is_settled_with_its_last_acknowledgement(world: World) -> None:
    """If `publish` returns before the broker acknowledges, no item of the batch is settled until all are
    acknowledged."""
    later = Later()
    world.put("m0", "m1", "m2")
    dispatcher = world.dispatcher(publisher=later)
    assert later.there.wait(20)
    (batch,) = later.sent
    for place in (2, 0):
        batch.acknowledge(place, Done(batch.items[place].id))
    world.calm()
    assert (dispatcher.stats.published, dispatcher.stats.in_flight) == (0, 3)
    threading.Thread(target=batch.acknowledge, args=(1, Failed("no", transient=False))).start()
    world.until(lambda: dispatcher.stats.in_flight == 0)
    world.calm()
    assert (dispatcher.stats.published, dispatcher.stats.dead) == (2, 1)
    assert [world.state(f"m{n}") for n in range(3)].count(None) == 2


def test_an_item_not_acknowledged_in_time_is_in_doubt(world: World) -> None:
    """At the publish timeout acknowledged items are settled and the others are released. A later acknowledgement
    changes nothing."""
    later = Later()
    world.put("m0", "m1")
    dispatcher = world.dispatcher(publisher=later, publish_timeout_ms=5_000, backoff_ms=60_000)
    assert later.there.wait(20)
    (batch,) = later.sent
    batch.acknowledge(0, Done(batch.items[0].id))
    world.advance(4_999)
    assert dispatcher.stats.in_flight == 2
    world.advance(1)
    world.until(lambda: dispatcher.stats.in_flight == 0)
    batch.acknowledge(1, Done(batch.items[1].id))
    world.calm()
    assert (dispatcher.stats.published, dispatcher.stats.in_doubt) == (1, 1)
    assert world.state(batch.items[1].id) == "due"


def test_a_drain_waits_for_acknowledgements(world: World) -> None:
    """`stop` returns only when the broker has acknowledged the last batch and the batch is settled."""
    later = Later()
    world.put("m0")
    dispatcher = world.dispatcher(publisher=later)
    assert later.there.wait(20)
    stopped = threading.Event()
    thread = threading.Thread(target=lambda: (dispatcher.stop(60), stopped.set()))
    thread.start()
    world.until(lambda: "stopping" in repr(dispatcher))
    assert not stopped.is_set()
    later.sent[0].acknowledge(0, Done("m0"))
    thread.join(20)
    assert stopped.is_set()
    assert (world.state("m0"), dispatcher.stats.published) == (None, 1)


def test_the_publish_timeout_is_local_time(world: World) -> None:
    """A step of the store's clock neither ends the timeout early nor delays it."""
    later = Later()
    world.put("m0")
    dispatcher = world.dispatcher(publisher=later, publish_timeout_ms=60_000, backoff_ms=60_000)
    assert later.there.wait(20)
    world.step_ms += 3_600_000
    world.put("other", in_ms=7_200_000)  # leads to a reply that shows the step to the dispatcher
    world.advance(30_000)
    assert dispatcher.stats.in_flight == 1
    world.step_ms -= 7_200_000
    world.advance(30_000)
    world.until(lambda: dispatcher.stats.in_flight == 0)
    assert dispatcher.stats.in_doubt == 1


@pytest.mark.parametrize(("name", "kind"), [("BatchAnswers", DelayedProduce), ("DelayedJoin", DelayedJoin)])
def test_batches_and_drains_go_through_the_purgatory(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[DelayedOperation]
) -> None:
    """Every batch is a `DelayedProduce`, and a drain is a `DelayedJoin`. Each of these operations completes once."""
    ended: list[object] = []
    original: Any = getattr(in_flight_module, name)

    class Seen(original):
        def on_complete(self) -> None:
            ended.append(self)
            super().on_complete()

    monkeypatch.setattr(in_flight_module, name, Seen)
    world.put("m0", "m1")
    dispatcher = world.dispatcher(batch=1)
    world.received(2)
    dispatcher.stop()
    assert len(ended) == (2 if kind is DelayedProduce else 1)
    assert all(isinstance(operation, kind) for operation in ended)


class Unsure(SharedLeases):
    """A claim source that records lease extensions. If a batch begins with the item "unknown", the source does not know
    how the batch ended."""

    def __init__(self, store: DelayStore, config: DispatcherConfig) -> None:
        super().__init__(store, config)
        self.extended: list[Batch] = []

    def extend(self, batch: Batch) -> bool:
        self.extended.append(batch)
        return True

    def to_settle(self, batch: Batch, settlements: Sequence[Settlement]) -> Sequence[Settlement] | None:
        return None if batch.items[0].id == "unknown" else settlements


class Alone(NamedTuple):
    """The batches in flight, without a dispatcher."""

    clock: VirtualClock
    claims: Unsure
    stats: DispatcherStats
    in_flight: InFlightBatches


@pytest.fixture
def alone(world: World) -> Alone:
    config = DispatcherConfig(publish_timeout_ms=60_000, lease_ms=9_000)
    clock, claims, stats = VirtualClock(), Unsure(world.store, config), DispatcherStats()
    return Alone(clock, claims, stats, InFlightBatches(config, clock, claims, stats))


def test_a_batch_is_answered_once(alone: Alone) -> None:
    """A batch ends once: with its last answer, the return of its publisher or its timeout, whichever is first."""
    clock, _, _, in_flight = alone
    batch = batch_of("a", "b")
    in_flight.hold(batch, 0)
    in_flight.watch(batch)
    batch.answers[0] = Done("a")
    in_flight.check(batch)
    assert list(in_flight.answered) == []
    in_flight.end(batch)
    in_flight.end(batch)
    clock.advance(120_000)
    in_flight.timer.run_due()
    assert list(in_flight.answered) == [batch]
    assert batch.over
    assert in_flight.purgatory.stats.watched == in_flight.purgatory.stats.expired == 0


def test_a_drain_ends_at_its_timeout_and_names_missing_batches(alone: Alone) -> None:
    """When a drain reaches its timeout of 500 ms, it reports the settled batches and the batches that are not
    settled."""
    clock, _, _, in_flight = alone
    reported: list[Any] = []
    first, second = batch_of("a"), batch_of("b")
    for batch in (first, second):
        in_flight.hold(batch, 0)
    in_flight.drain(500, reported.append)
    second.settlements = [Done("b")]
    in_flight.settled(second, Settled([Outcome.DONE], 0, None, None))
    clock.advance(499)
    in_flight.timer.run_due()
    assert reported == []
    clock.advance(1)
    in_flight.timer.run_due()
    assert (reported[0].members, reported[0].missing) == ((second,), frozenset({first}))
    assert in_flight.purgatory.stats.expired == 1


def test_a_lease_is_extended_until_its_batch_is_settled(alone: Alone) -> None:
    """While a batch is in flight, its lease is extended after each third of the lease time."""
    clock, claims, stats, in_flight = alone
    batch = batch_of("a")
    in_flight.hold(batch, 0)
    assert (len(in_flight), stats.in_flight, batch.lease_until_ns) == (1, 1, 9_000_000_000)
    for _ in range(2):
        clock.advance(3_000)
        in_flight.timer.run_due()
    assert claims.extended == [batch, batch]
    assert batch.lease_until_ns == 15_000_000_000
    batch.settlements = [Done("a")]
    in_flight.settled(batch, Settled([Outcome.DONE], 0, None, None))
    clock.advance(9_000)
    in_flight.timer.run_due()
    assert (len(in_flight), stats.in_flight, len(claims.extended)) == (0, 0, 2)
    assert in_flight.timer.next_ms() is None


def test_a_callback_that_raises_does_not_lose_the_others(alone: Alone) -> None:
    """`timer.run_due` raises the error of a callback. The next `run_due` runs the other callbacks that were due."""
    clock, _, _, in_flight = alone
    ran: list[str] = []

    def fails() -> None:
        raise KeyError("a mistake")

    for callback in (fails, lambda: ran.append("second")):
        in_flight.timer.schedule(10, callback)
    clock.advance(10)
    with pytest.raises(KeyError):
        in_flight.timer.run_due()
    in_flight.timer.run_due()
    assert ran == ["second"]


def test_a_batch_with_an_unknown_end_is_forgotten(alone: Alone) -> None:
    """A batch whose end the claim source does not know is not settled. The dispatcher must read the batch's shard
    again."""
    *_, stats, in_flight = alone
    unknown, known = batch_of("unknown"), batch_of("a")
    for batch in (unknown, known):
        in_flight.hold(batch, 0)
        batch.answers[:] = [Done(item.id) for item in batch.items]
        in_flight.answered.append(batch)
    calls, shards = in_flight.settle_calls(1_000)
    assert ([batch for _, batch in calls], shards) == ([known], [0])
    assert (len(in_flight), stats.in_flight, stats.stale) == (1, 1, 1)


def test_after_a_failed_step_a_batch_is_settled_again_once(alone: Alone) -> None:
    """If a step of the owner loop fails, it may have lost batches. A lost batch that has all its answers is settled
    again, once. Other lost batches are forgotten."""
    in_flight = alone.in_flight
    ready, over, lost = batch_of("a"), batch_of("b"), batch_of("c", "d")
    over.over = True
    for each in (ready, over, lost):
        in_flight.hold(each, 0)
    in_flight.ready.append(ready)
    in_flight.after_failure()
    assert (list(in_flight.answered), len(in_flight), alone.stats.in_flight) == ([over], 2, 2)
    in_flight.answered.clear()
    in_flight.after_failure()
    assert (list(in_flight.answered), len(in_flight), alone.stats.in_flight) == ([], 1, 1)
