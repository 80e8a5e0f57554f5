"""Items of an older release: its workers take the message for its item, so that the two are never out together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wheel_sched_celery.management import draining
from wheel_sched_celery.message.held_task import decode
from wheel_sched_celery.release.broker_connection import BrokerConnection
from wheel_sched_celery.release.older_items import is_older
from wheel_sched_celery.release.publishing import TaskPublisher

from wheel_sched.dispatcher import Batch, Failed
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store.items import Claim, Done, Item, Outcome, Settlement

if TYPE_CHECKING:
    import pytest
    from conftest import House


def hold_as_before(house: House, **options: Any) -> Item:
    """Hold a task under the id that the older release gave it; the item."""
    house.send(**{"countdown": 3600, **options})
    (found,) = house.store.list_items("due").found
    house.store.cancel([found.id], route=found.route)
    item = found.item()
    item.id = found.id.rpartition(":")[0]
    house.store.schedule([item])
    return item


def publish(house: House, claim: Claim) -> list[Any]:
    """What a dispatcher's publisher answers for a claim."""
    batch = Batch(claim, claim.items)
    publisher = TaskPublisher(house.app, None, house.store)
    publisher.publish(batch)
    publisher.close()
    return batch.answers


def settle(house: House, claim: Claim, answers: list[Settlement]) -> None:
    assert house.store.settle(claim, answers).outcomes == [Outcome.DONE] * len(answers)


def test_ids_of_the_older_release_are_known_by_their_end() -> None:
    """Also where the task's id has colons, or the digest has digits alone."""
    assert is_older("a:0:1700000000000")
    assert is_older("a:b:1:1700000000000@0123456789ab")
    assert not is_older("a:0:1700000000000:0123456789abcdef01")
    assert not is_older("a:0:1700000000000:012345678901234567")
    assert not is_older("somebody else's")


def test_a_dispatcher_sends_nothing_whose_item_an_older_worker_would_find_in_flight(house: House) -> None:
    """It gets an id of this release first, and leaves at its ETA: no worker takes back what is due."""
    old = hold_as_before(house)
    claim = house.claim()
    answers = publish(house, claim)
    assert (answers, house.published()) == ([Done(old.id)], [])
    settle(house, claim, answers)
    (found,) = house.store.list_items("due").found
    assert found.score_ms == decode(old.body).eta_ms
    assert (found.body, found.topic, found.refs, found.route) == (old.body, old.topic, old.refs, old.route)
    assert [message.headers["id"] for message in house.dispatch(house.claim())] == [old.route]
    assert house.store.schedule([old]).outcomes == [Outcome.STORED], "what it acknowledges is stored"


def test_a_task_that_waits_under_its_new_id_already_waits_once(house: House) -> None:
    """Whoever did the first step may have died before the second."""
    old = hold_as_before(house)
    first = house.claim()
    publish(house, first)
    assert publish(house, first) == [Done(old.id)]
    assert len(house.store.list_items("due").found) == 1


def test_while_its_other_item_is_being_sent_the_old_one_stays(house: House) -> None:
    """An older worker would acknowledge that message for the sake of this item."""
    hold_as_before(house)
    first = house.claim()
    publish(house, first)
    house.claim()
    (answer,) = publish(house, first)
    assert isinstance(answer, Failed)
    assert (answer.transient, "is being sent" in answer.reason) == (True, True)


def test_with_the_store_away_the_item_stays(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is tried again."""
    hold_as_before(house)
    claim = house.claim()

    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(house.store, "schedule", away)
    (answer,) = publish(house, claim)
    assert isinstance(answer, Failed)
    assert answer.transient


def test_what_the_server_could_not_push_gets_its_new_id_too(house: House) -> None:
    """A publisher sends it then, while the item is in flight."""
    old = hold_as_before(house)
    (item,) = house.claim().items
    publisher = TaskPublisher(house.app, None, house.store)
    assert publisher.refuse(item, "no push form") == Done(old.id)
    publisher.close()
    assert house.published() == []


def test_a_drain_sends_a_task_only_when_its_old_item_is_gone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an older worker then takes back is stored anew; and the drain says that it came back."""
    monkeypatch.setattr(draining, "ask", lambda *_: (frozenset(), {}))
    monkeypatch.setattr(draining, "LOOK_AGAIN_S", 0)
    old = hold_as_before(house)
    send = BrokerConnection.send

    def taken_back(line: BrokerConnection, tasks: Any) -> Any:
        answers = send(line, tasks)
        if tasks:
            assert house.store.schedule([old]).outcomes == [Outcome.STORED]
        return answers

    monkeypatch.setattr(BrokerConnection, "send", taken_back)
    drained = draining.drain(house.app)
    assert (drained.published, drained.kept, drained.back) == (1, {}, 1)
    assert [message.headers["id"] for message in house.published()] == [old.route]
