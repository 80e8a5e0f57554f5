"""A publisher's answer decides whether an item is done, dead, held, due again or in doubt. The tests run in virtual
time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.dispatcher import Answer, Batch, Failed
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.settle import Dead, Done, Held, Next
from wheel_sched.store.recurring import Recur

if TYPE_CHECKING:
    from conftest import World

HOUR_MS = 3_600_000


def test_a_failed_item_waits_twice_as_long_each_time(world: World) -> None:
    """An item that fails again and again waits 200, 400, 800 ms and so on up to a bound, exact to the millisecond.

    Once it is published, it does not come back.
    """
    start_ms = world.now_ms
    world.receiver.answer = lambda item: Failed("broker away") if world.now_ms < start_ms + 6_000 else Done(item.id)
    world.put("m")
    dispatcher = world.dispatcher(backoff_ms=200, backoff_max_ms=2_000)
    world.received(1)
    for count, delay_ms in enumerate((200, 400, 800, 1_600, 2_000, 2_000), start=2):
        world.advance(delay_ms - 1)
        world.received(count - 1)
        world.advance(1)
        world.received(count)
    assert (dispatcher.stats.failed, dispatcher.stats.published, dispatcher.stats.in_doubt) == (6, 1, 0)
    assert world.state("m") is None
    assert world.store.counts().happened("completed") == 1


def test_one_failing_item_does_not_hold_up_its_batch(world: World) -> None:
    """One item fails, and the other items of its batch are settled at once."""
    world.receiver.answer = lambda item: Failed("no") if item.id == "bad" else Done(item.id)
    world.put("a", "bad", "b")
    world.dispatcher()
    world.received(3)
    assert [world.state(i) for i in ("a", "bad", "b")] == [None, "due", None]


def test_a_lasting_failure_is_a_dead_letter_with_its_reason(world: World) -> None:
    """If the publisher answers with a permanent failure, the item becomes a dead letter with the reason, and is not
    tried again."""
    world.receiver.answer = lambda item: Failed("message too large", transient=False)
    world.put("m")
    dispatcher = world.dispatcher()
    world.received(1)
    world.advance(HOUR_MS)
    world.received(1)
    (found,) = world.store.get(["m"])
    assert found is not None
    assert (found.state, found.reason, found.body) == ("dead", "message too large", b"m")
    assert (dispatcher.stats.dead, dispatcher.stats.failed, dispatcher.stats.published) == (1, 1, 0)


def test_a_publisher_may_hold_bury_and_repeat(world: World) -> None:
    """A publisher may answer that an item is held, dead or due again later. The dispatcher settles the item
    accordingly."""
    answers: dict[str, Answer] = {
        "h": Held("h", "quota used up"),
        "d": Dead("d", "expired"),
        "n": Next("n", world.now_ms + HOUR_MS, b"2"),
    }
    world.receiver.answer = lambda item: answers[item.id]
    world.put("h", "d", "n")
    dispatcher = world.dispatcher()
    world.received(3)
    held, dead, waiting = world.store.get(["h", "d", "n"])
    assert held is not None
    assert (held.state, held.reason) == ("held", "quota used up")
    assert dead is not None
    assert (dead.state, dead.reason) == ("dead", "expired")
    assert waiting is not None
    assert (waiting.state, waiting.body) == ("due", b"2")
    assert (dispatcher.stats.held, dispatcher.stats.dead, dispatcher.stats.published) == (1, 1, 0)


def test_an_unanswered_item_is_in_doubt_and_released(world: World) -> None:
    """If a publisher leaves an item without an answer, the broker may have the item.

    The item is published again after the backoff, and counts as a possible duplicate.
    """
    world.receiver.answer = lambda item: None if item.id == "m1" and len(world.receiver.batches) == 1 else Done(item.id)
    world.put("m0", "m1", "m2")
    dispatcher = world.dispatcher()
    world.received(3)
    assert (dispatcher.stats.in_doubt, dispatcher.stats.failed, dispatcher.stats.published) == (1, 1, 2)
    world.advance(200)
    world.received(4)
    assert world.receiver.ids == ["m0", "m1", "m2", "m1"]
    assert dispatcher.stats.published == 3


def test_a_publisher_that_raises_leaves_the_rest_in_doubt(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """If a publisher raises in the middle of a batch, the answers that it gave before are settled.

    The unanswered items are in doubt and are published again.
    """

    def fail_once(item: Claimed) -> Done:
        if item.id == "m1" and len(world.receiver.batches) == 1:
            raise ConnectionError("reset by peer")
        return Done(item.id)

    world.receiver.answer = fail_once
    world.put("m0", "m1", "m2")
    dispatcher = world.dispatcher()
    world.received(2)
    assert (dispatcher.stats.published, dispatcher.stats.in_doubt) == (1, 2)
    events = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert events == ["dispatcher.publish_failed", "dispatcher.not_published"]
    world.advance(200)
    world.received(4)
    assert world.store.counts().sizes["body"] == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Done("other"), "it is about 'other'"),
        ("done", "expected Done, Next, Held, Dead or Failed, got: 'done'"),
        (Next("m", -1), "due_ms must lie between 1970 and the year 9999"),
        (Next("m", 5, b"", topic="two\nlines"), "expected a topic to be one line"),
    ],
    ids=["of another item", "of another type", "an impossible due", "an impossible topic"],
)
def test_an_impossible_answer_makes_only_its_item_dead(world: World, answer: Any, reason: str) -> None:
    """An item with an invalid answer becomes a dead letter whose reason names the mistake. Other items are
    published."""
    world.receiver.answer = lambda item: answer if item.id == "m" else Done(item.id)
    world.put("m", "good")
    dispatcher = world.dispatcher()
    world.received(2)
    (found,) = world.store.get(["m"])
    assert found is not None
    assert found.state == "dead"
    assert found.reason.startswith("the publisher's answer cannot be carried out: ")
    assert reason in found.reason
    world.put("next")
    world.received(3)
    assert (dispatcher.stats.published, dispatcher.stats.dead) == (2, 1)


def test_one_cancelled_in_flight_is_not_repeated(world: World) -> None:
    """If an item is cancelled while it is published, the publisher's answer `Next` has no effect, and nothing of
    the item remains."""

    def cancel(batch: Batch) -> None:
        world.handle().cancel(["m"])

    world.receiver.before = cancel
    world.receiver.answer = lambda item: Next(item.id, item.due_ms + 1_000)
    world.put("m")
    world.dispatcher()
    world.received(1)
    world.advance(HOUR_MS)
    world.received(1)
    assert world.state("m") is None


def test_an_item_that_kills_its_dispatchers_is_poison(world: World) -> None:
    """An item whose leases ended `lapse_cap` times without an answer becomes a dead letter, and other items are
    published."""
    world.put("poison")
    for _ in range(3):
        world.store.claim(10, lease_ms=1_000, lapse_cap=3)  # as if the item killed each dispatcher that claims it
        world.clock.advance(1_000)
    world.put("healthy")
    world.dispatcher(lapse_cap=3)
    world.received(1)
    (found,) = world.store.get(["poison"])
    assert found is not None
    assert found.state == "dead"
    assert found.reason.startswith("poison: ")
    assert world.receiver.ids == ["healthy"]


def test_an_item_that_recurs_is_due_again_and_its_occurrence_is_published(world: World) -> None:
    """A `Recur` settles the item and stores its occurrence in one step; the dispatcher then publishes it."""
    due_ms = world.now_ms + HOUR_MS

    def answer(item: Claimed) -> Answer:
        if item.id == "m":
            return Recur("m", due_ms, occurrences=[Item("m.1", world.now_ms, b"", route="m")])
        return Done(item.id)

    world.receiver.answer = answer
    world.put("m", "other")
    dispatcher = world.dispatcher()
    world.received(3)
    assert [received.id for received in world.receiver.received] == ["m", "other", "m.1"]
    assert [world.state(i) for i in ("m", "other", "m.1")] == ["due", None, None]
    (found,) = world.store.get(["m"])
    assert found is not None
    assert found.score_ms == due_ms
    assert dispatcher.stats.published == 2


def test_a_malformed_occurrence_is_a_dead_letter(world: World) -> None:
    """A `Recur` with an occurrence that the store cannot take makes the item a dead letter."""
    world.receiver.answer = lambda item: Recur(item.id, 5, occurrences=[Item("x", -1, b"")])
    world.put("m")
    world.dispatcher()
    world.received(1)
    assert world.state("m") == "dead"
