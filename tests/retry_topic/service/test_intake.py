"""The intake by itself: counts that no header lowers, repeats after crashes, and ids that two messages claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import RetryPolicy
from retry_topic.brokers.protocol import BrokerConsumer, Delivery
from retry_topic.cases import Taken
from retry_topic.headers import MAX_COUNT, RetryState, read, sign, write
from retry_topic.intake import Intake
from retry_topic.message import Headers
from retry_topic.names import dead_topic_of, retry_topic_of
from retry_topic.policy import PolicySet
from retry_topic.wire import decode_body
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import Item, Stored

if TYPE_CHECKING:
    from conftest import Bench

Policy = Callable[..., RetryPolicy]
RETRY = retry_topic_of("billing")
HOUR_MS = 3_600_000
SECRET, OTHER = b"sixteen bytes ok", b"another sixteen!"


class Desk:
    """An intake and the retry topic's consumer, one step at a time; nothing comes due by itself."""

    def __init__(self, bench: Bench, policy: RetryPolicy, **settings: Any) -> None:
        self.bench = bench
        self.store = bench.home.store
        self.intake = Intake(bench.home, "billing", PolicySet(policy), **settings)
        bench.home.broker.create_topic(dead_topic_of("billing"))
        self.consumer: BrokerConsumer = bench.home.broker.consumer([RETRY], "billing", idle_ms=60_000)

    def put(self, value: bytes = b"m", state: RetryState | None = None, headers: Headers = (), **more: Any) -> None:
        """A record in the retry topic, as a consumer would write it."""
        full = RetryState(**{"attempt": 1, "original_topic": "orders", "consumer_group": "billing"} | more)
        self.bench.publish(value, topic=RETRY, headers=write(headers, state or full))

    def poll(self, count: int = 1) -> list[Delivery]:
        deliveries: list[Delivery] = []
        while len(deliveries) < count and (more := self.consumer.poll(100, 5_000)):
            deliveries += more
        assert len(deliveries) == count
        return deliveries

    def take(self, count: int = 1) -> list[Taken]:
        return self.intake.take(self.consumer, self.poll(count))

    def waiting(self) -> list[str]:
        return [found.id for found in self.store.list_items("due").found]

    def release(self) -> None:
        """What is waiting goes out, as the dispatcher would have it."""
        self.store.cancel(self.waiting())


@pytest.fixture
def desk(bench: Bench, policy: Policy) -> Iterator[Desk]:
    """Hours of delay, so that what is stored waits."""
    desk = Desk(bench, policy(max_attempts=4, base_ms=HOUR_MS))
    yield desk
    desk.consumer.close()


def again(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """The same records, as the broker hands them out after a crash."""
    return [replace(delivery, deliveries=delivery.deliveries + 1) for delivery in deliveries]


@pytest.mark.parametrize("forged", [b"0", b"-1", b"", b"none", b"\xff\xfe", b"1", b"0000000000000000001"])
def test_a_count_that_is_set_back_on_every_hop_gains_nothing(desk: Desk, forged: bytes) -> None:
    """Whatever the header says each time, the store's record counts on, and the cap holds."""
    deaths = []
    for _ in range(4):
        desk.put(state=RetryState(id="m", original_topic="orders"), headers=())
        (delivery,) = desk.poll()
        headers = tuple(pair for pair in delivery.message.headers if pair[0] != "retry-attempt")
        message = replace(delivery.message, headers=(*headers, ("retry-attempt", forged)))
        (taken,) = desk.intake.take(desk.consumer, [replace(delivery, message=message)])
        deaths.append((taken.attempt, taken.dead))
        desk.release()
    assert deaths == [(1, None), (2, None), (3, None), (4, "max-attempts")]


@pytest.mark.parametrize("forged", [b"1000000000", b"9" * 400, b"4"])
def test_a_count_that_is_set_up_ends_the_message(desk: Desk, forged: bytes) -> None:
    """Too large a count is believed, to the sender's cost: a dead letter, which a person sees."""
    desk.bench.publish(b"m", topic=RETRY, headers=(("retry-id", b"m"), ("retry-attempt", forged)))
    (taken,) = desk.take()
    assert taken.dead == "max-attempts"
    assert taken.attempt == min(int(forged[:10]), MAX_COUNT)


def test_a_record_taken_in_twice_is_stored_once(desk: Desk) -> None:
    """The service died after storing and before settling: the repeat finds the id and settles."""
    desk.put(id="m")
    deliveries = desk.poll()
    desk.intake.store(deliveries)
    (taken,) = desk.intake.take(desk.consumer, again(deliveries))
    assert (taken.duplicate, taken.id, desk.waiting()) == (True, "m.1", ["m.1"])
    assert desk.store.counts().happened("accepted") == 1


def test_a_record_taken_in_twice_is_stored_once_though_its_message_has_gone(desk: Desk) -> None:
    """It went out before the repeat: the record is known by its place in the retry topic."""
    desk.put(id="m")
    deliveries = desk.poll()
    desk.intake.store(deliveries)
    desk.release()
    (taken,) = desk.intake.take(desk.consumer, again(deliveries))
    assert (taken.duplicate, desk.waiting()) == (True, [])
    desk.put(id="m", attempt=2)
    assert desk.take()[0].id == "m.2"


def test_a_call_whose_reply_was_lost_is_repeated_under_its_token(desk: Desk, monkeypatch: Any) -> None:
    """What was stored may have gone out meanwhile: the repeat is answered as the first time and stores nothing."""
    schedule, tokens = desk.store.schedule, []

    def losing(items: Sequence[Item], *, token: str | None = None) -> Stored:
        tokens.append(token)
        answer = schedule(items, token=token)
        if len(tokens) == 1:
            desk.release()
            raise StoreUnavailable("the reply was lost")
        return answer

    def insist(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except StoreUnavailable:
            return call()

    monkeypatch.setattr(desk.store, "schedule", losing)
    desk.put(id="m")
    (case,) = desk.intake.store(desk.poll(), insist=insist)
    assert (case.duplicate, desk.waiting()) == (False, [])
    assert len(tokens) == 2
    assert len(set(tokens)) == 1
    assert desk.store.counts().happened("accepted") == 1


def test_a_crash_between_storing_and_remembering_is_no_second_attempt(desk: Desk, monkeypatch: Any) -> None:
    """The first step was done, its count was not noted: the repeat has the same number and stores nothing."""
    desk.put(id="m")
    deliveries = desk.poll()
    remember = desk.store.remember
    with monkeypatch.context() as crash:

        def die(tries: Sequence[tuple[str, int, int]]) -> list[int]:
            if any(attempts for _, attempts, _ in tries):
                raise SystemExit
            return remember(tries)

        crash.setattr(desk.store, "remember", die)
        with pytest.raises(SystemExit):
            desk.intake.store(deliveries)
    (taken,) = desk.intake.take(desk.consumer, again(deliveries))
    assert (taken.duplicate, taken.attempt, desk.waiting()) == (True, 1, ["m.1"])


def test_a_second_record_of_the_same_failure_is_stored_once(desk: Desk) -> None:
    """A consumer that could not publish and settle in one step wrote its record twice."""
    desk.put(b"m", id="m")
    desk.put(b"m", id="m")
    first, second = desk.take(2)
    assert (first.duplicate, second.duplicate, desk.waiting()) == (False, True, ["m.1"])
    desk.put(b"m", id="m")
    (third,) = desk.take()
    assert (third.duplicate, desk.waiting()) == (True, ["m.1"])


def test_a_death_that_was_not_told_is_told_once_more(desk: Desk) -> None:
    """The service died after burying: the repeat buries nothing new and forwards to the dead topic."""
    desk.put(id="m", attempt=4)
    deliveries = desk.poll()
    desk.intake.store(deliveries)
    assert desk.bench.records(dead_topic_of("billing")) == []
    (taken,) = desk.intake.take(desk.consumer, again(deliveries))
    assert (taken.dead, taken.id) == ("max-attempts", "m.4")
    assert [letter.id for letter in desk.bench.letters()] == ["m.4"]
    assert [record.value for record in desk.bench.records(dead_topic_of("billing"))] == [b"m"]


def test_another_message_with_a_copied_id_is_not_lost(desk: Desk) -> None:
    """Headers that were copied onto another message give it an id of its own instead of the other's place."""
    desk.put(b"original", id="m", headers=(("trace", b"1"),))
    desk.put(b"another", id="m", headers=(("trace", b"1"),))
    desk.put(b"original", id="m", headers=(("trace", b"2"),))
    taken = desk.take(3)
    assert [one.duplicate for one in taken] == [False, False, False]
    assert len(set(desk.waiting())) == 3
    assert "m.1" in desk.waiting()


def test_two_dead_messages_with_one_id_are_two_dead_letters(desk: Desk) -> None:
    """Burying looks at the message as well, not at its id alone."""
    desk.put(b"original", id="m", attempt=4)
    desk.take()
    desk.put(b"another", id="m", attempt=4)
    desk.take()
    letters = [letter.message for letter in desk.bench.letters()]
    assert sorted(message.value for message in letters if message) == [b"another", b"original"]


def test_a_record_by_a_stranger_has_an_id_of_its_place(desk: Desk) -> None:
    """Records without any of our headers are first failures, each under its own id."""
    desk.bench.publish(b"same", b"same", topic=RETRY)
    first, second = desk.take(2)
    assert first.id != second.id
    assert (first.attempt, second.attempt, first.topic) == (1, 1, RETRY)
    assert len(desk.waiting()) == 2


def test_the_count_is_remembered_until_the_cap_by_age(desk: Desk) -> None:
    """The record outlives the longest wait: it is kept from the retry's due on."""
    desk.put(id="m")
    desk.take()
    assert desk.store.remember([("m:0", 0, 0)]) == [1]


@pytest.mark.parametrize("bench", ["memory"], indirect=True)
def test_what_the_observer_raises_stays_with_it(bench: Bench, policy: Policy, caplog: Any) -> None:
    """A failing `seen` is logged; the message is stored and settled."""

    def seen(taken: Taken) -> None:
        raise ValueError("observer")

    desk = Desk(bench, policy(base_ms=HOUR_MS), seen=seen)
    desk.put(id="m")
    desk.take()
    assert desk.waiting() == ["m.1"]
    assert "intake.seen_failed" in caplog.text


class TestSigned:
    """With secrets, whoever lacks them cannot write counts."""

    @pytest.fixture
    def desk(self, bench: Bench, policy: Policy) -> Iterator[Desk]:
        desk = Desk(bench, policy(max_attempts=4, base_ms=HOUR_MS), secrets=(SECRET, OTHER))
        yield desk
        desk.consumer.close()

    @pytest.mark.parametrize("secret", [SECRET, OTHER])
    def test_a_signed_record_waits_and_is_signed_again(self, desk: Desk, secret: bytes) -> None:
        """Any of the secrets will do; what is stored carries the first one's signature."""
        state = RetryState(id="m", attempt=2, original_topic="orders", consumer_group="billing")
        desk.put(state=sign(state, secret))
        (taken,) = desk.take()
        assert (taken.id, taken.dead) == ("m.2", None)
        (found,) = desk.store.list_items("due").found
        stored = read(decode_body(found.body).headers)
        assert stored.signature == sign(stored, SECRET).signature

    @pytest.mark.parametrize("signature", [None, "", "forged"])
    def test_a_forged_record_is_a_dead_letter_under_its_own_id(self, desk: Desk, signature: str | None) -> None:
        """It neither gains attempts nor takes the id, or the record, of the message it claims to be."""
        desk.put(state=RetryState(id="m", attempt=1, original_topic="orders", signature=signature))
        (taken,) = desk.take()
        assert taken.dead == "max-attempts"
        assert not taken.id.startswith("m.")
        assert desk.store.remember([("m:0", 0, 0)]) == [0]
        assert [letter.message.value for letter in desk.bench.letters() if letter.message] == [b"m"]

    def test_a_record_without_headers_claims_nothing(self, desk: Desk) -> None:
        """Nothing to forge, so it is a first failure."""
        desk.bench.publish(b"m", topic=RETRY)
        (taken,) = desk.take()
        assert (taken.attempt, taken.dead) == (1, None)
