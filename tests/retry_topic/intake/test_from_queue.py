"""The intake from a queue: counts that no header lowers, repeats after crashes, and ids that two messages claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import DeadLetters, RetryPolicy, connect
from retry_topic.brokers.protocol import BrokerConsumer, Delivery, PublishFailure
from retry_topic.consumer import failed_message, retry_state
from retry_topic.consumer.outcome import success_of
from retry_topic.consumer.settling import Successes
from retry_topic.intake.from_queue import IntakeFromQueue
from retry_topic.intake.taken import Taken
from retry_topic.message import Headers, Message, Source
from retry_topic.message.encoding import decode_body
from retry_topic.message.headers import MAX_COUNT, RetryState, attempts_key, read, sign, write
from retry_topic.message.topic_names import dead_topic_of, retry_topic_of
from retry_topic.policy import Failure, PolicySet
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import AttemptCounts, Outcome, Stored
from wheel_sched.store.ordering import OrderedKeys, Owner, lock_of, scope_of

if TYPE_CHECKING:
    from conftest import Bench

Policy = Callable[..., RetryPolicy]
RETRY = retry_topic_of("billing")
HOUR_MS = 3_600_000
SECRET, OTHER = b"sixteen bytes ok", b"another sixteen!"


class Desk:
    """An intake and its consumer of the retry topic, called one step at a time. No dispatcher runs."""

    def __init__(self, bench: Bench, policy: RetryPolicy, **settings: Any) -> None:
        self.bench = bench
        self.store = bench.connection.store
        self.intake = IntakeFromQueue(bench.connection, "billing", PolicySet(policy), **settings)
        bench.connection.broker.create_topic(dead_topic_of("billing"))
        self.consumer: BrokerConsumer = bench.connection.broker.consumer([RETRY], "billing", idle_ms=60_000)

    def put(self, value: bytes = b"m", state: RetryState | None = None, headers: Headers = (), **more: Any) -> None:
        """Publish a record to the retry topic, as a consumer would write it."""
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

    def letters(self) -> list[str]:
        return [letter.id for letter in self.bench.letters()]

    def release(self) -> None:
        """Remove the waiting messages from the store, as if a dispatcher had sent them."""
        self.store.cancel(self.waiting())


@pytest.fixture
def desk(bench: Bench, policy: Policy) -> Iterator[Desk]:
    """A desk whose policy has delays of an hour, so that stored messages wait."""
    desk = Desk(bench, policy(max_attempts=4, base_ms=HOUR_MS))
    yield desk
    desk.consumer.close()


def attempts_of(name: str, value: bytes = b"m", replays: int = 0) -> str:
    """The key under which the store counts the attempts of a message with this id and payload."""
    return attempts_key(RetryState(id=name, replays=replays), Message(RETRY, value))


def again(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """The same deliveries, as the broker makes them again after a crash."""
    return [replace(delivery, deliveries=delivery.deliveries + 1) for delivery in deliveries]


@pytest.mark.parametrize("forged", [b"0", b"-1", b"", b"none", b"\xff\xfe", b"1", b"0000000000000000001"])
def test_a_count_that_is_set_back_on_every_hop_gains_nothing(desk: Desk, forged: bytes) -> None:
    """A header sets the attempt count back after each retry. The store continues its own count, so `max_attempts`
    holds."""
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
    """A header with too large a count is believed. Only its sender is harmed: the message becomes a dead letter."""
    desk.bench.publish(b"m", topic=RETRY, headers=(("retry-id", b"m"), ("retry-attempt", forged)))
    (taken,) = desk.take()
    assert taken.dead == "max-attempts"
    assert taken.attempt == min(int(forged[:10]), MAX_COUNT)


def test_the_dead_topic_keeps_as_many_letters_as_the_service_says(bench: Bench, policy: Policy) -> None:
    """No reader trims the dead topic, so the intake does, to about `dead_kept` records. The store keeps all dead
    letters."""
    desk = Desk(bench, policy(max_attempts=1), dead_kept=100)
    for first in range(0, 600, 200):
        for n in range(first, first + 200):
            desk.put(b"%d" % n)
        desk.take(200)
    assert 100 <= bench.connection.broker.topics()[dead_topic_of("billing")] <= 300  # Redis trims whole nodes
    assert len(desk.letters()) == 600
    desk.consumer.close()


TRACEBACK, ATTEMPTS, POLICY = "retry-traceback", "retry-failed-attempts", "retry-policy"


@pytest.mark.parametrize(
    ("refused", "kept"),
    [
        ((), {TRACEBACK, ATTEMPTS, POLICY}),
        ((TRACEBACK,), {ATTEMPTS, POLICY}),
        ((TRACEBACK, ATTEMPTS), {POLICY}),
        ((ATTEMPTS, POLICY), {TRACEBACK}),
    ],
)
def test_a_letter_that_the_dead_topic_refuses_gets_smaller(
    memory: Bench, policy: Policy, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...], kept: set[str]
) -> None:
    """The dead topic refuses a letter as too large. The intake sends it again without its traceback, then without its
    failed attempts, and at last exactly as the record was read."""
    desk = Desk(memory, policy(max_attempts=1))
    desk.put(state=RetryState(id="m", attempt=1, traceback="Traceback"))
    forward = desk.consumer.forward

    def choosy(pairs: Sequence[tuple[Delivery, Message]]) -> Any:
        (pair,) = pairs
        if any(name in refused for name, _ in pair[1].headers):
            return [PublishFailure("too large", transient=False)]
        return forward(pairs)

    monkeypatch.setattr(desk.consumer, "forward", choosy)
    desk.take()
    (letter,) = memory.records(dead_topic_of("billing"))
    assert {name for name, _ in letter.headers} & {TRACEBACK, ATTEMPTS, POLICY} == kept
    desk.consumer.close()


def test_a_record_taken_in_twice_is_stored_once(desk: Desk) -> None:
    """The service dies after storing a record and before settling it. When the broker delivers the record again, the
    intake finds the stored id and only settles the record."""
    desk.put(id="m")
    deliveries = desk.poll()
    desk.intake.store(deliveries)
    (taken,) = desk.intake.take(desk.consumer, again(deliveries))
    assert (taken.duplicate, taken.id, desk.waiting()) == (True, "m.1", ["m.1"])
    assert desk.store.counts().happened("accepted") == 1


def test_a_record_taken_in_twice_is_stored_once_though_its_message_has_gone(desk: Desk) -> None:
    """The message is sent before the broker delivers its record again. The store still knows the record by its place in
    the retry topic, and stores nothing."""
    desk.put(id="m")
    deliveries = desk.poll()
    desk.intake.store(deliveries)
    desk.release()
    (taken,) = desk.intake.take(desk.consumer, again(deliveries))
    assert (taken.duplicate, desk.waiting()) == (True, [])
    desk.put(id="m", attempt=2)
    assert desk.take()[0].id == "m.2"


def test_a_call_whose_reply_was_lost_is_repeated_under_its_token(desk: Desk, monkeypatch: Any) -> None:
    """The reply of a call is lost, and the call is repeated. The repeat gets the answer of the first call and stores
    nothing, even if the message was sent meanwhile."""
    schedule, tokens = AttemptCounts.schedule, []

    def losing(self: AttemptCounts, *items: Any, token: str | None = None) -> Stored:
        tokens.append(token)
        answer = schedule(self, *items, token=token)
        if len(tokens) == 1:
            desk.release()
            raise StoreUnavailable("the reply was lost")
        return answer

    def until_available(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except StoreUnavailable:
            return call()

    monkeypatch.setattr(AttemptCounts, "schedule", losing)
    desk.put(id="m")
    (case,) = desk.intake.store(desk.poll(), until_available=until_available)
    assert (case.duplicate, desk.waiting()) == (False, [])
    assert len(tokens) == 2
    assert len(set(tokens)) == 1
    assert desk.store.counts().happened("accepted") == 1


def test_a_crash_after_storing_is_no_second_delivery_though_the_message_has_gone(desk: Desk, monkeypatch: Any) -> None:
    """One step stores the message, its record and its attempt. So a repeat after a crash stores and counts nothing."""
    desk.put(id="m")
    deliveries = desk.poll()
    schedule = AttemptCounts.schedule
    with monkeypatch.context() as crash:

        def die(*items: Any, **more: Any) -> Stored:
            schedule(*items, **more)
            raise SystemExit

        crash.setattr(AttemptCounts, "schedule", die)
        with pytest.raises(SystemExit):
            desk.intake.store(deliveries)
    desk.release()
    (taken,) = desk.intake.take(desk.consumer, again(deliveries))
    assert (taken.duplicate, taken.attempt, desk.waiting()) == (True, 1, [])


def test_over_several_shards_a_crash_before_the_note_is_no_second_attempt(
    memory: Bench, policy: Policy, monkeypatch: Any
) -> None:
    """The attempt count is in another shard than the message. After a crash between both writes, the record is
    delivered again, and the intake finds the message."""
    bench = type(memory)(connect("memory:", shards=4))
    desk = Desk(bench, policy(base_ms=HOUR_MS))
    desk.put(id="m")
    deliveries = desk.poll()

    def die(*_: Any) -> int:
        raise SystemExit

    with monkeypatch.context() as crash:
        crash.setattr("wheel_sched.store.attempt_counts.AttemptCountsInMemory.raise_to", die)
        with pytest.raises(SystemExit):
            desk.intake.store(deliveries)
    (taken,) = desk.intake.take(desk.consumer, again(deliveries))
    assert (taken.duplicate, taken.attempt, desk.waiting()) == (True, 1, ["m.1"])
    desk.consumer.close()
    bench.close()


def test_a_second_record_of_the_same_failure_is_stored_once(desk: Desk) -> None:
    """A consumer that cannot publish and settle in one step may write a record twice. The intake stores the message
    once."""
    desk.put(b"m", id="m")
    desk.put(b"m", id="m")
    first, second = desk.take(2)
    assert (first.duplicate, second.duplicate, desk.waiting()) == (False, True, ["m.1"])
    desk.put(b"m", id="m")
    (third,) = desk.take()
    assert (third.duplicate, desk.waiting()) == (True, ["m.1"])


def test_a_death_that_was_not_told_is_told_once_more(desk: Desk) -> None:
    """The service dies after storing a dead letter. When the broker delivers the record again, the intake stores
    nothing and sends the letter to the dead topic."""
    desk.put(id="m", attempt=4)
    deliveries = desk.poll()
    desk.intake.store(deliveries)
    assert desk.bench.records(dead_topic_of("billing")) == []
    (taken,) = desk.intake.take(desk.consumer, again(deliveries))
    assert (taken.dead, taken.id) == ("max-attempts", "m.4")
    assert [letter.id for letter in desk.bench.letters()] == ["m.4"]
    assert [record.value for record in desk.bench.records(dead_topic_of("billing"))] == [b"m"]


def test_another_message_with_a_copied_id_is_not_lost(desk: Desk) -> None:
    """A record with a known id, but another payload or other headers, gets an id made from its place in the topic."""
    desk.put(b"original", id="m", headers=(("trace", b"1"),))
    desk.put(b"another", id="m", headers=(("trace", b"1"),))
    desk.put(b"original", id="m", headers=(("trace", b"2"),))
    taken = desk.take(3)
    assert [one.duplicate for one in taken] == [False, False, False]
    assert len(set(desk.waiting())) == 3
    assert "m.1" in desk.waiting()


def test_two_dead_messages_with_one_id_are_two_dead_letters(desk: Desk) -> None:
    """Two dead letters with one id and different payloads are both kept, because the store compares the messages and
    not only their ids."""
    desk.put(b"original", id="m", attempt=4)
    desk.take()
    desk.put(b"another", id="m", attempt=4)
    desk.take()
    letters = [letter.message for letter in desk.bench.letters()]
    assert sorted(message.value for message in letters if message) == [b"another", b"original"]


def test_a_record_by_a_stranger_has_an_id_of_its_place(desk: Desk) -> None:
    """A record without retry headers counts as a first failure. Its id is made from its place in the topic."""
    desk.bench.publish(b"same", b"same", topic=RETRY)
    first, second = desk.take(2)
    assert first.id != second.id
    assert (first.attempt, second.attempt, first.topic) == (1, 1, RETRY)
    assert len(desk.waiting()) == 2


def test_the_count_is_remembered_until_the_cap_by_age(desk: Desk) -> None:
    """The store remembers the attempt count while the message waits."""
    desk.put(id="m")
    desk.take()
    assert AttemptCounts(desk.store).raise_to([(attempts_of("m"), 0, 0)]) == [1]


@pytest.mark.parametrize("bench", ["memory"], indirect=True)
def test_what_the_observer_raises_stays_with_it(bench: Bench, policy: Policy, caplog: Any) -> None:
    """An error raised by the callback `seen` is logged. The message is still stored and settled."""

    def seen(taken: Taken) -> None:
        raise ValueError("observer")

    desk = Desk(bench, policy(base_ms=HOUR_MS), seen=seen)
    desk.put(id="m")
    desk.take()
    assert desk.waiting() == ["m.1"]
    assert "intake.seen_failed" in caplog.text


class TestCopies:
    """Two copies of one delivery, as after a dispatcher that died between publishing and settling."""

    def fail(self, desk: Desk, attempt: int = 1, value: bytes = b"m", **more: Any) -> Taken:
        """Take in a failure reported by a consumer that counts attempts."""
        desk.put(value, **{"id": "m", "attempt": attempt, "started_ms": 1_000} | more)
        (taken,) = desk.take()
        return taken

    def test_a_failure_that_is_told_twice_is_one_attempt(self, desk: Desk) -> None:
        """The second record of an attempt stores nothing and does not raise the count, even after the next attempt was
        sent."""
        for attempt in (1, 2):
            assert not self.fail(desk, attempt).duplicate
            desk.release()
            assert self.fail(desk, attempt).duplicate
        assert (desk.waiting(), desk.letters()) == ([], [])
        assert AttemptCounts(desk.store).raise_to([(attempts_of("m"), 0, 0)]) == [2]
        assert self.fail(desk, 3).id == "m.3"

    @pytest.mark.parametrize("verdict", ["dead", None])
    def test_no_copy_of_the_last_attempt_but_one_buries_a_message_under_way(
        self, desk: Desk, verdict: str | None
    ) -> None:
        """A second record of attempt 3 of 4 does not count as attempt 4, and its verdict is ignored. So it makes no
        dead letter."""
        self.fail(desk, 3)
        desk.release()
        taken = self.fail(desk, 3, verdict=verdict)
        assert (taken.duplicate, taken.dead, desk.letters()) == (True, None, [])

    @pytest.mark.parametrize("attempt", [2, 4, 9])
    def test_a_message_that_has_succeeded_is_neither_retried_nor_buried(self, desk: Desk, attempt: int) -> None:
        """If one copy has succeeded, a failure of the other copy stores nothing, whichever attempt it reports."""
        self.fail(desk)
        desk.release()
        message = Message("billing.redelivery", b"m", source=Source("billing.redelivery", 0, "1"))
        key = success_of("billing", message, RetryState(id="m", attempt=1))
        assert key is not None
        Successes(desk.store).remember([key])
        taken = self.fail(desk, attempt)
        assert (taken.duplicate, desk.waiting(), desk.letters()) == (True, [], [])

    def test_another_payload_under_the_same_id_is_another_message(self, desk: Desk) -> None:
        """A handler may have forwarded its message with all headers and another payload. That message is stored too."""
        self.fail(desk, 2)
        Successes(desk.store).remember([attempts_of("m")])
        taken = self.fail(desk, 2, b"another")
        assert not taken.duplicate
        assert len(desk.waiting()) == 2

    def test_who_hands_a_failure_on_as_it_came_has_its_attempts_counted(self, desk: Desk) -> None:
        """A record without a start time comes from a client that does not count. The store counts its attempts."""
        numbers = []
        for _ in range(4):
            numbers.append(self.fail(desk, 1, started_ms=None).attempt)
            desk.release()
        assert numbers == [1, 2, 3, 4]
        assert len(desk.letters()) == 1

    def test_a_copy_from_before_a_replay_does_not_count_against_it(self, desk: Desk) -> None:
        """After a replay, the failure of a delivery from before the replay has no effect."""
        self.fail(desk, 4)
        DeadLetters(desk.bench.connection).replay()
        desk.release()
        assert self.fail(desk, 3).duplicate
        assert self.fail(desk, 1, replays=1).id == "mr1.1"

    def test_a_record_that_is_read_again_after_its_message_has_failed_anew_is_no_third_attempt(
        self, desk: Desk
    ) -> None:
        """The record of attempt 1 is read again after attempt 2 has failed. The store has forgotten the record's place,
        but it knows the attempt and stores nothing."""
        self.fail(desk, 1)
        desk.release()
        self.fail(desk, 2)
        desk.release()
        assert self.fail(desk, 1).duplicate
        assert desk.waiting() == []

    @pytest.mark.parametrize("succeeded", [True, False])
    def test_a_key_with_an_order_waits_for_no_copy_of_what_has_succeeded(self, desk: Desk, succeeded: bool) -> None:
        """A failing copy has locked its ordering key. The key is unlocked if the message has succeeded. Otherwise the
        retry of the first copy unlocks it."""
        locks, scope = OrderedKeys(desk.store), scope_of("billing", "orders")
        key_lock = lock_of(scope, b"k")
        owner = Owner(scope, "me", locks.acquire(scope, "me", 60_000).epoch)
        self.fail(desk, 2, key_lock=key_lock)
        desk.release()
        assert locks.close(owner, [(key_lock, "m", True, "k")]) == [Outcome.DUPLICATE]  # the message has left the store
        locks.close(owner, [(key_lock, "m", False, "k")])
        if succeeded:
            Successes(desk.store).remember([attempts_of("m")])
        assert self.fail(desk, 2, key_lock=key_lock).duplicate
        assert [key.lock for key in locks.closed(scope)] == ([] if succeeded else [key_lock])

    def test_two_groups_that_read_one_published_message_count_apart(self, desk: Desk) -> None:
        """Two groups see one id of a message, and each has its own attempt count. Two messages published with one id at
        different times have their own counts too."""
        first = self.fail(desk, 1, id="daily", published_ms=1_000)
        second = self.fail(desk, 1, id="daily", published_ms=2_000)
        assert (first.duplicate, second.duplicate, len(desk.waiting())) == (False, False, 2)
        assert first.id.startswith("daily~")
        state = RetryState(id="daily", published_ms=1_000, consumer_group="billing")
        other = replace(state, consumer_group="audit")
        assert first.id == f"{state.id_base}.1" != f"{other.id_base}.1"
        assert self.fail(desk, 1, id="daily", published_ms=1_000).duplicate


class TestSigned:
    """With secrets, a client that knows none of them cannot set attempt counts."""

    @pytest.fixture
    def desk(self, bench: Bench, policy: Policy) -> Iterator[Desk]:
        desk = Desk(bench, policy(max_attempts=4, base_ms=HOUR_MS), secrets=(SECRET, OTHER))
        yield desk
        desk.consumer.close()

    @pytest.mark.parametrize("secret", [SECRET, OTHER])
    def test_a_signed_record_waits_and_is_signed_again(self, desk: Desk, secret: bytes) -> None:
        """A signature with any of the secrets is valid. The stored message is signed with the first secret."""
        state = RetryState(id="m", attempt=2, original_topic="orders", consumer_group="billing")
        desk.put(state=sign(state, Message(RETRY, b"m"), secret))
        (taken,) = desk.take()
        assert (taken.id, taken.dead) == ("m.2", None)
        (found,) = desk.store.list_items("due").found
        message = decode_body(found.body)
        stored = read(message.headers)
        assert stored.signature == sign(stored, message, SECRET).signature

    @pytest.mark.parametrize("signature", [None, "", "forged"])
    def test_a_record_that_nobody_signed_is_counted_by_the_store(self, desk: Desk, signature: str | None) -> None:
        """An unsigned record becomes a dead letter after `max_attempts`. It gets neither id nor count
        from its headers."""
        decided = []
        for attempt in (1, 1, 3, 1):
            desk.put(state=RetryState(id="m", attempt=attempt, original_topic="orders", signature=signature))
            (taken,) = desk.take()
            decided.append((taken.attempt, taken.dead))
            assert not taken.id.startswith("m.")
            desk.release()
        assert decided == [(1, None), (2, None), (3, None), (4, "max-attempts")]
        assert AttemptCounts(desk.store).raise_to([(attempts_of("m"), 0, 0)]) == [0]
        assert [letter.message.value for letter in desk.bench.letters() if letter.message] == [b"m"]

    def test_a_record_without_headers_is_counted_by_its_payload(self, desk: Desk) -> None:
        """A record without headers that is written again and again gets no more attempts than any other message."""
        decided = []
        for _ in range(4):
            desk.bench.publish(b"m", topic=RETRY)
            (taken,) = desk.take()
            decided.append((taken.attempt, taken.dead))
            desk.release()
        assert decided == [(1, None), (2, None), (3, None), (4, "max-attempts")]
        desk.bench.publish(b"another", topic=RETRY)
        assert desk.take()[0].attempt == 1

    def test_records_alike_are_many_messages(self, desk: Desk) -> None:
        """Equal unsigned records are all stored as messages of their own. They share one attempt count."""
        desk.bench.publish(b"m", b"m", topic=RETRY)
        first, second = desk.take(2)
        desk.bench.publish(b"m", topic=RETRY)
        (third,) = desk.take()
        assert [one.attempt for one in (first, second, third)] == [1, 2, 3]
        assert len(desk.waiting()) == 3

    def test_what_came_back_from_an_unsigned_record_is_counted_on_by_the_store(self, desk: Desk) -> None:
        """The intake signs the messages that it stores, but those of equal unsigned records share one id. So each
        failure of such a message counts as one more attempt."""
        desk.bench.publish(b"m", b"m", topic=RETRY)
        desk.take(2)
        stored = [decode_body(found.body) for found in desk.store.list_items("due").found]
        desk.release()
        for message in stored:
            back = replace(message, topic="billing.redelivery", source=Source("billing.redelivery", 0, "1"))
            state = retry_state("billing", back, (SECRET,))
            assert (state.unsigned, success_of("billing", back, state)) == (False, None)
            record = failed_message("billing", back, state, Failure(), secrets=(SECRET,), started_ms=1)
            desk.bench.publish(record.value, topic=RETRY, headers=record.headers)
        assert [one.attempt for one in desk.take(2)] == [3, 4]

    def test_no_topic_of_a_lenient_policy_gives_an_unsigned_record_more_attempts(
        self, bench: Bench, policy: Policy
    ) -> None:
        """Headers choose the topic and so the policy. For an unsigned record, the smallest `max_attempts` of all
        policies holds."""
        lenient = policy(max_attempts=100, base_ms=HOUR_MS, name="lenient")
        policies = PolicySet(policy(max_attempts=2, base_ms=HOUR_MS), {"archive": lenient})
        desk = Desk(bench, policies.default, secrets=(SECRET,))
        desk.intake.policies = policies
        state = RetryState(id="m", attempt=1, original_topic="orders", consumer_group="billing")
        signed = sign(state, Message(RETRY, b"m"), SECRET)
        deaths = []
        for _ in range(2):
            desk.put(state=replace(signed, original_topic="archive"))
            deaths.append(desk.take()[0].dead)
            desk.release()
        assert deaths == [None, "max-attempts"]

    def test_a_signature_is_good_for_one_payload(self, desk: Desk) -> None:
        """A record with a signature for another payload counts as unsigned."""
        state = RetryState(id="m", attempt=1, original_topic="orders", consumer_group="billing")
        desk.put(b"other", state=sign(state, Message(RETRY, b"m"), SECRET))
        (taken,) = desk.take()
        assert not taken.id.startswith("m.")
