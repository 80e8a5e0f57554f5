"""A dispatcher claims the next batch while it publishes the current one.

It publishes the next batch only when the current one is settled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from wheel_sched.dispatcher import Batch, Failed, PublisherTraits
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.plans import shard_of

if TYPE_CHECKING:
    from conftest import FailingCalls, World

BATCH = 10


@pytest.fixture
def instant(world: World) -> World:
    """A world whose publisher never waits, so the dispatcher's own thread (the owner) calls it."""
    world.receiver.traits = PublisherTraits(never_waits=True)
    return world


def test_the_next_batch_is_claimed_while_one_is_published(instant: World) -> None:
    """Only one batch is claimed ahead. The third batch waits in the store, where other dispatchers can claim it."""
    flying: list[int] = []
    instant.receiver.before = lambda batch: flying.append(instant.store.counts().sizes["leased"])
    instant.put(*(f"m{n:02}" for n in range(3 * BATCH)))
    instant.dispatcher(batch=BATCH)
    instant.received(3 * BATCH)
    assert flying == [2 * BATCH, 2 * BATCH, BATCH]
    assert instant.receiver.ids == [f"m{n:02}" for n in range(3 * BATCH)]


def test_a_publisher_that_may_wait_gets_nothing_claimed_ahead(world: World) -> None:
    """If the publisher may wait, only the batch being published is claimed. Other dispatchers can claim the next
    ones."""
    flying: list[int] = []
    world.receiver.before = lambda batch: flying.append(world.store.counts().sizes["leased"])
    world.put(*(f"m{n:02}" for n in range(3 * BATCH)))
    world.dispatcher(batch=BATCH)
    world.received(3 * BATCH)
    assert flying == [BATCH] * 3


def test_a_batch_is_not_begun_before_the_one_before_it_is_settled(
    instant: World, watch: Callable[[DelayStore], FailingCalls]
) -> None:
    """While the store does not settle the first batch, the second is not published. So after a kill, at most one batch
    is published twice."""
    calls = watch(instant.store)
    calls.failures["settle"] = [StoreUnavailable("away")] * 5
    instant.put(*(f"m{n:02}" for n in range(3 * BATCH)))
    dispatcher = instant.dispatcher(batch=BATCH, lease_ms=600_000)
    instant.until(lambda: dispatcher.stats.store_errors == 1)
    while calls.failures["settle"]:
        assert (len(instant.receiver.batches), dispatcher.stats.in_flight) == (1, 2 * BATCH)
        instant.advance(100)
    instant.advance(10_000)
    instant.received(3 * BATCH)
    counts = instant.store.counts()
    assert sorted(instant.receiver.ids) == [f"m{n:02}" for n in range(3 * BATCH)]
    assert (counts.happened("completed"), counts.happened("lapsed")) == (3 * BATCH, 0)
    assert (dispatcher.stats.stale, dispatcher.stats.in_doubt, dispatcher.stats.in_flight) == (0, 0, 0)


def test_after_a_lost_answer_to_a_claim_ahead_nothing_is_lost(
    instant: World, watch: Callable[[DelayStore], FailingCalls]
) -> None:
    """After a claim ahead has failed, the dispatcher reads the shard again, and every message is published once."""
    calls = watch(instant.store)

    def fail_the_next_claim(batch: Batch) -> None:
        if len(instant.receiver.batches) == 2:
            calls.failures["claim"] = [StoreUnavailable("away")]

    instant.receiver.before = fail_the_next_claim
    instant.put(*(f"m{n:02}" for n in range(5 * BATCH)))
    dispatcher = instant.dispatcher(batch=BATCH)
    instant.until(lambda: dispatcher.stats.store_errors == 1)
    instant.advance(1_000)
    instant.received(5 * BATCH)
    assert len(set(instant.receiver.ids)) == 5 * BATCH


def test_a_pause_holds_items_that_are_not_claimed_yet(instant: World) -> None:
    """If the topic is paused while a batch is published, that batch and the one claimed ahead are still published.

    The items that are not claimed yet are held.
    """

    def pause(batch: Batch) -> None:
        if len(instant.receiver.batches) == 1:
            instant.handle().pause("t")

    instant.receiver.before = pause
    instant.put(*(f"m{n:02}" for n in range(4 * BATCH)), topic="t")
    instant.dispatcher(batch=BATCH)
    instant.received(2 * BATCH)
    counts = instant.store.counts()
    assert (counts.total("held"), counts.total("leased"), counts.total("due")) == (2 * BATCH, 0, 0)
    instant.handle().resume("t")
    instant.received(4 * BATCH)


def test_an_older_answer_does_not_delay_the_look_of_a_marker(wide: World) -> None:
    """A message is stored just after a claim ahead. The dispatcher gets the message's marker before the claim's
    reply, and still publishes the message on time."""
    wide.receiver.traits = PublisherTraits(never_waits=True)
    first, ahead = (next(f"m{n}" for n in range(99) if shard_of(f"m{n}", 8) == shard) for shard in (0, 1))
    late = next(f"late{n}" for n in range(99) if shard_of(f"late{n}", 8) == 1)
    dispatcher = wide.dispatcher()

    def bring_another(batch: Batch) -> None:
        if len(wide.receiver.batches) == 1:
            marks = dispatcher.stats.marks
            wide.put(late, in_ms=50)
            wide.until(lambda: bool(dispatcher.loop.has_posts), "the marker was heard")
            assert dispatcher.stats.marks == marks

    wide.receiver.before = bring_another
    wide.put(first, in_ms=10)
    wide.put(ahead, in_ms=10)
    wide.advance(10)
    wide.received(2)
    assert set(wide.receiver.ids) == {first, ahead}
    wide.advance(49)
    assert len(wide.receiver.received) == 2
    wide.advance(1)
    assert wide.received(3)[-1].id == late
    assert wide.receiver.received[-1].at_ms == wide.receiver.received[-1].due_ms


def test_a_drain_publishes_a_batch_that_was_claimed_ahead(instant: World) -> None:
    """A dispatcher that is told to stop also publishes the batch that it claimed ahead. So no item waits for the
    end of its lease."""
    stopping: list[threading.Thread] = []
    dispatchers = []

    def stop(batch: Batch) -> None:
        if len(instant.receiver.batches) == 1:
            thread = threading.Thread(target=dispatchers[0].stop, args=(60,))
            thread.start()
            stopping.append(thread)
            instant.until(lambda: "stopping" in repr(dispatchers[0]), "told to stop")

    dispatchers.append(instant.dispatcher(batch=BATCH))
    instant.receiver.before = stop
    instant.put(*(f"m{n:02}" for n in range(5 * BATCH)))
    instant.until(lambda: bool(stopping), "a batch was published")
    stopping[0].join(30)
    counts = instant.store.counts()
    assert (counts.happened("completed"), counts.sizes["leased"], counts.sizes["due"]) == (2 * BATCH, 0, 3 * BATCH)


def test_a_stop_without_a_timeout_releases_batches_that_were_not_begun(
    instant: World, watch: Callable[[DelayStore], FailingCalls]
) -> None:
    """If `stop` has a timeout of 0, the batch that was claimed ahead is released. It was not published, so it is
    not in doubt."""
    calls = watch(instant.store)
    calls.failures["settle"] = [StoreUnavailable("away")]
    instant.put(*(f"m{n:02}" for n in range(2 * BATCH)))
    dispatcher = instant.dispatcher(batch=BATCH, lease_ms=600_000)
    instant.until(lambda: dispatcher.stats.store_errors == 1)
    dispatcher.stop(timeout_s=0)
    counts = instant.store.counts()
    assert (len(instant.receiver.batches), counts.sizes["leased"], counts.sizes["due"]) == (1, 0, BATCH)
    assert (counts.happened("completed"), dispatcher.stats.in_doubt) == (BATCH, 0)


def test_a_failing_publisher_gets_the_next_batch_too(instant: World) -> None:
    """If the publisher answers that all items of a batch failed, the dispatcher settles them and publishes the next
    batch."""
    instant.receiver.answer = lambda item: Failed("no", transient=False)
    instant.put(*(f"m{n:02}" for n in range(3 * BATCH)))
    dispatcher = instant.dispatcher(batch=BATCH)
    instant.until(lambda: dispatcher.stats.dead == 3 * BATCH)
    assert len(instant.receiver.batches) == 3


@pytest.fixture
def transactional(world: World) -> World:
    """A world whose publisher uses transactions: it publishes the batches of a shard one after another."""
    world.receiver.traits = PublisherTraits(transactional=True)
    return world


def held_up(world: World, shard: int = 0) -> tuple[threading.Event, threading.Event]:
    """Make the publisher wait at each batch of `shard`. Return two events.

    The publisher sets the first event when a batch reaches it. The test sets the second to let the publisher continue.
    """
    going, go_on = threading.Event(), threading.Event()

    def wait(batch: Batch) -> None:
        if batch.claim.shard == shard:
            going.set()
            go_on.wait(30)

    world.receiver.before = wait
    return going, go_on


def test_transactional_a_full_batch_waits_behind_the_one_that_goes_out(transactional: World) -> None:
    """While the first batch is being published, the second is already claimed and waits for the publisher. The third
    batch stays in the store.
    """
    going, go_on = held_up(transactional)
    transactional.put(*(f"m{n:02}" for n in range(3 * BATCH)))
    dispatcher = transactional.dispatcher(batch=BATCH)
    assert going.wait(30)
    transactional.until(lambda: dispatcher.stats.in_flight == 2 * BATCH, "the second is claimed")
    transactional.calm()
    assert (len(transactional.receiver.batches), transactional.store.counts().sizes["leased"]) == (1, 2 * BATCH)
    go_on.set()
    transactional.received(3 * BATCH)
    assert transactional.receiver.ids == [f"m{n:02}" for n in range(3 * BATCH)]


def test_transactional_a_small_batch_grows_while_another_goes_out(transactional: World) -> None:
    """Items that become due while a batch is published are published together in the next batch."""
    going, go_on = held_up(transactional)
    transactional.put("first")
    dispatcher = transactional.dispatcher(batch=BATCH)
    assert going.wait(30)
    for n in range(BATCH - 1):
        transactional.put(f"m{n}", in_ms=1)
        transactional.advance(1)
    assert dispatcher.stats.in_flight == 1
    go_on.set()
    transactional.received(BATCH)
    assert [len(batch.items) for batch in transactional.receiver.batches] == [1, BATCH - 1]


def test_transactional_shards_do_not_wait_for_each_other(wide: World) -> None:
    """While the publisher is busy with a batch of one shard, another thread publishes a batch of another shard."""
    wide.receiver.traits = PublisherTraits(transactional=True)
    slow, quick = (next(f"m{n}" for n in range(99) if shard_of(f"m{n}", 8) == shard) for shard in (0, 1))
    _, go_on = held_up(wide, shard=0)
    wide.put(slow)
    dispatcher = wide.dispatcher(batch=BATCH, workers=8)
    wide.until(lambda: len(wide.receiver.batches) == 1, "the slow one is under way")
    wide.put(quick)
    wide.until(lambda: dispatcher.stats.published == 1)
    assert wide.receiver.ids == [quick]
    go_on.set()
    wide.received(2)
