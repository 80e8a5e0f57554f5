"""When the store's clock steps, no item is early, the step is recorded, and the dispatcher continues."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from wheel_sched.dispatcher import Batch
from wheel_sched.store.core.items import Item

if TYPE_CHECKING:
    from conftest import World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def test_a_day_forward_and_back(world: World) -> None:
    """The store's clock steps a day forward and then back. Only items that are due by the stepped clock are published.

    The epoch and the store's counts of clock jumps show both steps.
    """
    start_ms = world.now_ms
    world.put("today", in_ms=HOUR_MS)
    world.put("next week", in_ms=7 * DAY_MS)
    dispatcher = world.dispatcher(sweep_ms=60_000)
    world.step_ms = DAY_MS
    world.advance(60_000)  # no event reports a step; the sweep finds it
    assert [item.id for item in world.received(1)] == ["today"]
    counts = world.store.counts()
    assert (counts.epoch, counts.jumps) == (2, 1)
    assert abs(counts.last_jump_ms - DAY_MS) <= 1

    world.step_ms = 0
    world.put("soon", in_ms=100)
    world.until(lambda: dispatcher.stats.clock_jumps == 2)
    world.advance(99)
    world.received(1)
    world.advance(1)
    world.received(2)
    counts = world.store.counts()
    assert (counts.epoch, counts.jumps, dispatcher.stats.clock_jumps) == (3, 2, 2)
    assert abs(counts.last_jump_ms + DAY_MS) <= 100_000

    world.advance(start_ms + 7 * DAY_MS - 1 - world.now_ms)
    world.received(2)
    world.advance(1)
    assert [item.at_ms - item.due_ms for item in world.received(3)[1:]] == [0, 0]


def test_a_step_is_reported_to_every_shard(wide: World) -> None:
    """A dispatcher that sees a clock step reports it to every shard, because a new epoch of one shard protects no
    other shard."""
    wide.put(*(f"m{n}" for n in range(64)), in_ms=HOUR_MS)
    wide.dispatcher()
    wide.step_ms = DAY_MS
    wide.advance(60_000)
    wide.received(64)
    assert [(counts.epoch, counts.jumps) for counts in wide.store.counts_by_shard()] == [(2, 1)] * 8


def test_two_dispatchers_record_a_step_once(world: World) -> None:
    """If two dispatchers see the same clock step, the epoch rises by one, and both continue."""
    world.put("m", in_ms=HOUR_MS)
    one, other = world.dispatcher(), world.dispatcher(store=world.handle())
    world.step_ms = DAY_MS
    world.advance(60_000)
    world.received(1)
    world.until(lambda: one.stats.clock_jumps + other.stats.clock_jumps == 2)
    assert (world.store.counts().epoch, world.store.counts().jumps) == (2, 1)
    for n in range(10):
        world.put(f"n{n}", in_ms=1)
        world.advance(1)
        world.received(2 + n)


@pytest.mark.parametrize("step_ms", [DAY_MS, -DAY_MS], ids=["forward", "back"])
def test_a_step_does_not_change_the_publish_timeout(world: World, step_ms: int) -> None:
    """A monotonic clock measures the publish timeout. So a step of the store's clock neither ends it at once nor
    delays it."""
    gate = threading.Event()

    def wait(batch: Batch) -> None:
        assert gate.wait(20)

    world.receiver.before = wait
    world.put("m")
    dispatcher = world.dispatcher(publish_timeout_ms=60_000, workers=2)
    world.until(lambda: dispatcher.stats.in_flight == 1)
    world.step_ms = step_ms
    world.put("n", in_ms=-DAY_MS)  # due by either clock, so the dispatcher claims, and the reply shows the step
    world.until(lambda: dispatcher.stats.clock_jumps == 1)
    world.calm()
    for _ in range(59):
        world.advance(1_000)
    assert dispatcher.stats.in_doubt == 0
    world.advance(1_000)
    world.until(lambda: dispatcher.stats.in_doubt >= len(world.receiver.batches))
    gate.set()


@pytest.mark.parametrize("back_ms", [1, 50, *(pytest.param(ms, marks=pytest.mark.slow) for ms in (3_000, 5_000))])
def test_a_small_step_back_makes_no_item_early_and_no_busy_loop(world: World, back_ms: int) -> None:
    """After a step back of at most 5 s the store's time does not change until its clock has caught up. The
    dispatcher waits and does not poll."""
    world.put("m", in_ms=10_000)
    dispatcher = world.dispatcher(sweep_ms=1_000)
    world.advance(8_500)
    world.step_ms = -back_ms
    claims, sweeps = dispatcher.stats.claims, dispatcher.stats.sweeps
    for _ in range(back_ms + 1_600):
        if world.receiver.received:
            break
        world.tick()
    (received,) = world.received(1)
    assert received.at_ms - received.due_ms in (0, 1)
    assert dispatcher.stats.claims - claims <= 5
    assert dispatcher.stats.sweeps - sweeps <= 10
    assert (world.store.counts().epoch, dispatcher.stats.clock_jumps) == (1, 0)


def test_a_busy_dispatcher_after_a_small_step_back_is_still_punctual(world: World) -> None:
    """After a step back of 400 ms each message is released, by the stepped clock, at most 1 ms late and never early."""
    dispatcher = world.dispatcher()
    world.put("before", in_ms=1)
    world.advance(1_000)
    world.received(1)
    world.step_ms = -400
    world.handle().schedule([Item(f"m{n}", world.now_ms + 500 + 10 * n, b"") for n in range(20)])
    world.until(lambda: dispatcher.stats.marks >= 2)
    empty_claims = dispatcher.stats.empty_claims
    for n in range(900):
        world.tick()
        if len(world.receiver.received) == 21:
            break
        assert n < 899
    world.received(21)
    assert all(item.at_ms - item.due_ms >= 0 for item in world.receiver.received)
    assert max(item.at_ms - item.due_ms for item in world.receiver.received[1:]) <= 1
    # for 400 ms the store's clock shows the same time, 100 ms before the first due time: one look each 100 ms
    assert dispatcher.stats.empty_claims - empty_claims <= 5
