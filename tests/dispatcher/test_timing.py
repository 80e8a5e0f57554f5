"""Items are released on time and never early. The receiver compares each due time with the store's clock."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.store.core.items import Item
from wheel_sched.store.core.settle import Next

if TYPE_CHECKING:
    from conftest import World

HOUR_MS = 3_600_000


def test_everything_is_released_in_its_very_millisecond(world: World) -> None:
    """400 messages become due within 3 s. Each is released in the millisecond in which it is due."""
    rng = random.Random(7)
    dues_ms = sorted(rng.randrange(1, 3_000) for _ in range(400))
    world.handle().schedule([Item(f"m{n}", world.now_ms + due_ms, b"") for n, due_ms in enumerate(dues_ms)])
    dispatcher = world.dispatcher()
    start_ms, claims = world.now_ms, dispatcher.stats.claims
    for due_ms in sorted(set(dues_ms)):
        world.advance(start_ms + due_ms - 1 - world.now_ms)
        world.received(sum(other < due_ms for other in dues_ms))
        world.advance(1)
        world.received(sum(other <= due_ms for other in dues_ms))
    assert {item.at_ms - item.due_ms for item in world.receiver.received} == {0}
    assert len(set(world.receiver.ids)) == 400
    assert dispatcher.stats.published == sum(dispatcher.stats.lateness_counts) == 400
    assert dispatcher.stats.claims - claims <= len(set(dues_ms))
    assert dispatcher.stats.empty_claims == 0


@pytest.mark.parametrize("in_ms", [1, 59_999, 60_000, 60_001, HOUR_MS, 30 * 24 * HOUR_MS])
def test_far_dues_are_kept_to_the_millisecond(world: World, in_ms: int) -> None:
    """An item that is due in up to 30 days is released in its millisecond, although many sweeps come before."""
    start_ms = world.now_ms
    world.put("m", in_ms=in_ms)
    dispatcher = world.dispatcher()
    while (left_ms := start_ms + in_ms - 1 - world.now_ms) > 0:
        world.advance(min(left_ms, HOUR_MS))
    assert world.receiver.received == []
    world.advance(1)
    (received,) = world.received(1)
    assert received.at_ms == received.due_ms
    assert dispatcher.stats.empty_claims == 0


def test_items_due_before_the_start_are_released_at_once(world: World) -> None:
    """A dispatcher that starts with overdue items releases them at once, the oldest first."""
    world.put("old", in_ms=-HOUR_MS)
    world.put("older", in_ms=-2 * HOUR_MS)
    world.dispatcher()
    world.received(2)
    assert world.receiver.ids == ["older", "old"]


def test_an_earlier_item_of_another_handle_wakes_it(world: World) -> None:
    """Another process stores an earlier item. Its marker wakes the dispatcher, which releases both items in their
    milliseconds."""
    world.put("later", in_ms=HOUR_MS)
    dispatcher = world.dispatcher()
    world.put("earlier", in_ms=500)
    world.until(lambda: dispatcher.stats.marks == 1)
    world.advance(499)
    assert world.receiver.received == []
    world.advance(1)
    (received,) = world.received(1)
    assert (received.id, received.at_ms - received.due_ms) == ("earlier", 0)
    world.advance(HOUR_MS - 501)
    assert len(world.receiver.received) == 1
    world.advance(1)
    assert [item.at_ms - item.due_ms for item in world.received(2)] == [0, 0]


def test_a_later_item_wakes_no_dispatcher(world: World) -> None:
    """The store writes a marker only for an item that is due before all others, so a later item wakes no dispatcher."""
    world.put("first", in_ms=100)
    dispatcher = world.dispatcher()
    for n in range(20):
        world.put(f"m{n}", in_ms=200 + n)
    world.calm()
    assert dispatcher.stats.marks == 0


def test_an_item_due_now_needs_no_move_of_the_clock(world: World) -> None:
    """An item that is due now is published at once, because its marker makes the dispatcher claim."""
    world.dispatcher()
    world.put("now")
    assert world.received(1)[0].at_ms == world.now_ms


def test_a_successor_is_as_punctual_as_its_item(world: World) -> None:
    """If the publisher answers `Next` ten times, the item is released ten times, each time in its millisecond."""
    world.receiver.answer = lambda item: Next(item.id, item.due_ms + 1_000)
    world.put("tick", in_ms=1_000)
    world.dispatcher()
    for n in range(1, 11):
        world.advance(1_000)
        world.received(n)
    assert {item.at_ms - item.due_ms for item in world.receiver.received} == {0}


def test_a_crashed_dispatchers_items_come_when_its_lease_ends(world: World) -> None:
    """If a dispatcher crashes with an item under lease, another one releases the item in the millisecond in which
    the lease ends."""
    world.put("m")
    world.store.claim(10, lease_ms=7_000)  # as if a dispatcher crashed after the claim
    dispatcher = world.dispatcher()
    world.advance(6_999)
    assert world.receiver.received == []
    world.advance(1)
    assert [item.id for item in world.received(1)] == ["m"]
    assert dispatcher.stats.empty_claims == 0


def test_two_dispatchers_share_the_work_and_double_nothing(world: World) -> None:
    """Two dispatchers compete for every batch. Each item is published by one of them."""
    for n in range(200):
        world.put(f"m{n}", in_ms=1 + n // 20)
    one, other = world.dispatcher(batch=5), world.dispatcher(store=world.handle(), batch=5)
    for n in range(1, 11):
        world.advance(1)
        world.received(20 * n)
    assert len(set(world.receiver.ids)) == 200
    assert {item.at_ms - item.due_ms for item in world.receiver.received} == {0}
    assert one.stats.published + other.stats.published == 200


def test_on_settled_is_called_for_each_item(world: World) -> None:
    """`on_settled` gets each item once, with its settlement and the store's time."""
    seen: list[tuple[str, str, int]] = []
    world.dispatcher(on_settled=lambda item, answer, now_ms: seen.append((item.id, type(answer).__name__, now_ms)))
    world.put("m")
    world.received(1)
    assert seen == [("m", "Done", world.now_ms)]


def test_an_on_settled_that_raises_stops_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """If `on_settled` raises, the error is logged, the item is settled, and the next item is published."""

    def fail(*_: Any) -> None:
        raise LookupError("of the listener's own")

    world.dispatcher(on_settled=fail)
    for n in range(3):
        world.put(f"m{n}")
        world.received(n + 1)
    assert [record.getMessage() for record in caplog.records] == ["dispatcher.on_settled_failed"] * 3


def test_items_that_a_sweep_finds_are_released(world: World) -> None:
    """An item whose marker was lost is released by the next sweep. The dispatcher sweeps because another item waits."""
    world.deafen()
    world.put("later", in_ms=HOUR_MS)
    dispatcher = world.dispatcher(sweep_ms=10_000)
    world.advance(1_000)
    world.put("unheard", in_ms=500)
    world.advance(8_999)
    assert world.receiver.received == []
    world.advance(1)
    (received,) = world.received(1)
    assert (received.id, received.at_ms - received.due_ms) == ("unheard", 8_500)
    assert dispatcher.stats.sweeps == 1
