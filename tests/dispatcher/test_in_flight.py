"""In-flight batches: late answers, the publish timeout, and a drain that waits for the batches."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.dispatcher import Batch, Dispatcher, DispatcherConfig, Failed, PublisherTraits
from wheel_sched.dispatcher import in_flight as in_flight_module
from wheel_sched.dispatcher.in_flight import InFlightBatches
from wheel_sched.purgatory import Completion, DelayedJoin, DelayedOperation, DelayedProduce
from wheel_sched.store import Claim, Claimed, Done
from wheel_sched.testing import VirtualClock

if TYPE_CHECKING:
    from conftest import World


class Later:
    """A publisher whose broker acknowledges when the test says so."""

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


def dispatched(world: World, publisher: Any, **settings: int) -> Dispatcher:
    dispatcher = Dispatcher(world.store, publisher, config=DispatcherConfig(**settings), clock=world.clock)
    world._dispatchers.append(dispatcher)
    dispatcher.start()
    world.calm()
    return dispatcher


def test_a_batch_is_settled_with_its_last_acknowledgement(world: World) -> None:
    """`publish` has returned long before; nothing is settled until the last answer has come."""
    later = Later()
    world.put("m0", "m1", "m2")
    dispatcher = dispatched(world, later)
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


def test_what_is_not_acknowledged_in_time_is_in_doubt(world: World) -> None:
    """At the timeout acknowledged items are settled, others released; a late acknowledgement changes nothing."""
    later = Later()
    world.put("m0", "m1")
    dispatcher = dispatched(world, later, publish_timeout_ms=5_000, backoff_ms=60_000)
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
    """`stop` returns only when the last batch is settled."""
    later = Later()
    world.put("m0")
    dispatcher = dispatched(world, later)
    assert later.there.wait(20)
    stopped = threading.Event()
    thread = threading.Thread(target=lambda: (dispatcher.stop(60), stopped.set()))
    thread.start()
    world.until(lambda: dispatcher._draining)
    assert not stopped.is_set()
    later.sent[0].acknowledge(0, Done("m0"))
    thread.join(20)
    assert stopped.is_set()
    assert (world.state("m0"), dispatcher.stats.published) == (None, 1)


def test_the_publish_timeout_is_local_time(world: World) -> None:
    """A step of the store's clock neither ends it early nor delays it."""
    later = Later()
    world.put("m0")
    dispatcher = dispatched(world, later, publish_timeout_ms=60_000, backoff_ms=60_000)
    assert later.there.wait(20)
    world.step_ms += 3_600_000
    world.put("other", in_ms=7_200_000)  # a reply, from which the dispatcher learns of the step
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
    """Every batch is a `DelayedProduce` and the drain a `DelayedJoin`: each completes once, and none is bypassed."""
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


def test_a_batch_is_answered_once_whatever_comes_afterwards() -> None:
    """Its last answer, its publisher's return, its timeout: only the first of them counts."""
    clock, over = VirtualClock(), list[Batch]()
    in_flight = InFlightBatches(clock, 1_000, over.append)
    batch = batch_of("a", "b")
    in_flight.watch(batch)
    batch.answers[0] = Done("a")
    in_flight.check(batch)
    assert over == []
    in_flight.end(batch)
    in_flight.end(batch)
    clock.advance(2_000)
    in_flight.timer.run_due()
    assert over == [batch]
    assert batch.over
    assert in_flight.purgatory.stats.watched == in_flight.purgatory.stats.expired == 0


def test_a_drain_is_over_at_its_timeout_with_what_is_missing() -> None:
    """The drain reports the batches that are not settled."""
    clock, heard = VirtualClock(), list[Any]()
    in_flight = InFlightBatches(clock, 60_000, lambda _: None)
    first, second = batch_of("a"), batch_of("b")
    in_flight.drain([first, second], 500, heard.append)
    in_flight.settled(second)
    clock.advance(499)
    in_flight.timer.run_due()
    assert heard == []
    clock.advance(1)
    in_flight.timer.run_due()
    assert (heard[0].members, heard[0].missing) == ((second,), frozenset({first}))
    assert in_flight._drain is not None
    assert in_flight._drain.completion is Completion.EXPIRED
