"""A repeated publish with the same id stores and sends nothing a second time, whatever happened to the first call."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.errors import BrokerUnavailable, InDoubt, Rejected, StoreError, StoreUnavailable
from wheel_sched.store import DelayStore, Done, KnownIds

if TYPE_CHECKING:
    from conftest import Bench

TOPIC = "orders"


@pytest.fixture
def ready(bench: Bench) -> Bench:
    """A bench whose topic exists."""
    bench.connection.broker.create_topic(TOPIC)
    return bench


def sends(bench: Bench) -> list[str]:
    """Claim and settle all waiting messages, as a dispatcher would. Return their ids."""
    store = bench.connection.store
    bench.until(lambda: store.counts().total("due") == 0 or bool(store.list_items("due").found[0].score_ms))
    bench.until(lambda: store.now_ms() >= max((found.score_ms for found in store.list_items("due").found), default=0))
    claim = store.claim()
    store.settle(claim, [Done(item.id) for item in claim.items])
    return [item.id for item in claim.items]


def raised(error: Exception) -> None:
    raise error


def stored_in_doubt(bench: Bench, patch: pytest.MonkeyPatch, error: StoreError) -> None:
    """Let each later write of an item succeed and then raise `error`."""
    for kind in (KnownIds, DelayStore):
        patch.setattr(kind, "schedule", unconfirmed(kind.schedule, error))


def unconfirmed(schedule: Callable[..., object], error: StoreError) -> Callable[..., None]:
    def stored(*args: Any, **more: Any) -> None:
        schedule(*args, **more)
        raise error

    return stored


def test_a_delayed_message_that_is_repeated_when_it_has_gone_out_goes_once(ready: Bench) -> None:
    """After a message was sent, a repeat with its id sends nothing, whether the repeat has a delay, a past time or
    neither."""
    assert ready.connection.publish(TOPIC, b"m", delay=0.001, id="7") == "7"
    soon = datetime.now(UTC) + timedelta(seconds=1)
    assert ready.connection.publish(TOPIC, b"m", at=soon, id="8") == "8"
    assert sorted(sends(ready)) == ["7", "8"]
    assert ready.connection.publish(TOPIC, b"m", delay=0.001, id="7") == "7"
    assert ready.connection.publish(TOPIC, b"m", id="7") == "7"
    assert ready.connection.publish(TOPIC, b"m", at=soon, id="8") == "8"
    assert (ready.waiting(), ready.records(TOPIC)) == (0, [])


def test_a_message_that_waits_is_not_sent_at_once_as_well(ready: Bench) -> None:
    """A publish without delay sends nothing if a message with the same id waits."""
    ready.connection.publish(TOPIC, b"m", delay=3_600, id="7")
    assert ready.connection.publish(TOPIC, b"m", id="7") == "7"
    assert (ready.waiting(), ready.records(TOPIC)) == (1, [])


def test_an_id_of_another_topic_is_another_message(ready: Bench) -> None:
    """The store remembers an id for one topic only. The same id in another topic means another message."""
    ready.connection.broker.create_topic("other")
    ready.connection.publish(TOPIC, b"m", delay=0.001, id="7")
    sends(ready)
    ready.connection.publish("other", b"m", delay=0.001, id="7")
    assert ready.waiting() == 1
    ready.connection.publish(TOPIC, b"m", delay=3_600, id="8")
    ready.connection.publish("other", b"m", id="8")
    assert len(ready.records("other")) == 1


def test_an_id_that_waits_for_another_topic_is_refused(ready: Bench) -> None:
    """The store holds one waiting message per id. So `publish` refuses a second message with this id for another
    topic."""
    ready.connection.broker.create_topic("other")
    ready.connection.publish(TOPIC, b"m", delay=3_600, id="7")
    with pytest.raises(
        Rejected, match=r"id '7' is that of a message for 'orders'.*: nothing was sent; give it another id"
    ):
        ready.connection.publish("other", b"m", delay=3_600, id="7")
    assert ready.waiting() == 1


def test_a_cancelled_id_may_be_published_again(ready: Bench) -> None:
    """The id of a cancelled message may be used again, with or without delay, because the message was never sent."""
    for _ in range(2):
        ready.connection.publish(TOPIC, b"m", delay=3_600, id="7")
        assert ready.waiting() == 1
        ready.connection.store.cancel(["7"])
    ready.connection.publish(TOPIC, b"m", id="7")
    assert len(ready.records(TOPIC)) == 1


def test_an_id_is_known_for_ten_minutes_after_its_due(memory: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes after the due time the id may name another message, for example of a job that runs each hour."""
    memory.connection.broker.create_topic(TOPIC)
    memory.connection.publish(TOPIC, b"m", delay=0.001, id="7")
    sends(memory)
    (shard,) = memory.connection.store.backend.shards  # type: ignore[attr-defined]  # the memory store's
    us = shard._wall_us
    for minutes, waiting in ((9.9, 0), (10.1, 1)):
        monkeypatch.setattr(shard, "_wall_us", lambda m=minutes: us() + int(m * 60_000_000))
        memory.connection.publish(TOPIC, b"m", delay=3_600, id="7")
        assert memory.waiting() == waiting


@pytest.mark.parametrize(
    "error", [InDoubt("only 0 of 1 confirmed"), StoreUnavailable("no answer from the server", in_doubt=True)]
)
@pytest.mark.parametrize(("given", "minutes"), [({}, 1), ({"id": "7"}, 10)])
def test_a_delayed_message_in_doubt_tells_the_id_to_repeat_it_with(
    ready: Bench, error: StoreUnavailable, given: dict[str, str], minutes: int
) -> None:
    """If nobody knows whether a delayed message was stored, the error has its id, given by the caller or made by
    `publish`. A repeat with this id sends nothing twice."""
    with pytest.MonkeyPatch.context() as patch:
        stored_in_doubt(ready, patch, error)
        words = (
            rf"{error}.*publish it again with id='(\w+)', which sends nothing twice until {minutes} min after its due"
        )
        with pytest.raises(type(error), match=words) as raised:
            ready.connection.publish(TOPIC, b"m", delay=0.001, **given)
    assert raised.value.in_doubt
    (sent,) = sends(ready)
    assert f"id={sent!r}" in str(raised.value)
    ready.connection.publish(TOPIC, b"m", delay=0.001, id=sent)
    ready.connection.publish(TOPIC, b"m", id=sent)
    assert (ready.waiting(), ready.records(TOPIC)) == (0, [])


def test_a_broker_that_is_away_keeps_nothing_from_being_stored(memory: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delayed message is stored even if its topic cannot be created now. The next `publish` creates the topic."""
    memory.connection.broker.create_topics = True  # type: ignore[attr-defined]  # the memory broker's
    with monkeypatch.context() as patch:
        patch.setattr(memory.connection.broker, "create_topic", lambda _: raised(BrokerUnavailable("away")))
        memory.connection.publish("later", b"m", delay=3_600)
    assert (memory.waiting(), memory.connection.broker.topics()) == (1, {})
    memory.connection.publish("later", b"m", delay=3_600)
    assert (memory.waiting(), memory.connection.broker.topics()) == (2, {"later": 0})


def test_a_made_id_of_a_long_delay_is_known_while_it_waits(ready: Bench) -> None:
    """For a message with a long delay, the error says that a repeat sends nothing twice while the message waits."""
    with pytest.MonkeyPatch.context() as patch:
        stored_in_doubt(ready, patch, InDoubt("only 0 of 1 confirmed"))
        with pytest.raises(InDoubt, match=r"id='(\w+)', which sends nothing twice while it waits$") as raised:
            ready.connection.publish(TOPIC, b"m", delay=3_600)
    (waiting,) = ready.connection.store.list_items("due").found
    assert waiting.id in str(raised.value)
    ready.connection.publish(TOPIC, b"m", delay=3_600, id=waiting.id)
    assert ready.waiting() == 1


def test_an_error_that_leaves_nothing_open_names_no_id(ready: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """If certainly nothing was stored, the error has no id: the caller may repeat the same call."""

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("no connection")

    monkeypatch.setattr(KnownIds, "schedule", away)
    with pytest.raises(StoreUnavailable, match=r"^no connection$"):
        ready.connection.publish(TOPIC, b"m", delay=60)


@pytest.mark.real
def test_a_made_id_costs_nothing_while_its_message_waits(server: Bench, redis_client: Any) -> None:
    """The store remembers only ids that the caller gave, until ten minutes after the due time."""
    server.connection.broker.create_topic(TOPIC)
    server.connection.publish(TOPIC, b"m", delay=3_600)
    assert list(redis_client.scan_iter("*:known:*")) == []
    server.connection.publish(TOPIC, b"m", delay=3_600, id="7")
    (key,) = redis_client.scan_iter("*:known:*")
    assert 4_195_000 < redis_client.pttl(key) <= 4_200_001
