"""Messages stored as a reference to a record: how they are stored, and how they get their payload back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from retry_topic import Message, RetryService, connect
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Delivery, PublishFailure
from retry_topic.connection import Connection
from retry_topic.intake.from_queue import IntakeFromQueue
from retry_topic.message import Reference, Source, digest_of
from retry_topic.message.encoding import decode_body, encode_body, split_reference
from retry_topic.message.headers import RetryState, write
from retry_topic.policy import Fixed, PolicySet, RetryPolicy
from retry_topic.release.originals import MOST_BYTES, OriginalsPublisher
from retry_topic.service import ServiceConfig
from wheel_sched.dispatcher import Batch, Failed, PublisherTraits
from wheel_sched.errors import BrokerUnavailable, ConfigError, Rejected
from wheel_sched.store import Claim, Claimed, Dead, Done, Held, Next, open_store

LARGE = b"x" * 1_000
SOURCE = Source("g.retry", 3, "17", 1)


class Originals:
    """A broker that reads single records again, with prepared answers."""

    def __init__(self, *answers: bytes | PublishFailure) -> None:
        self.answers = list(answers)
        self.asked: list[Reference] = []
        self.away = False

    def originals(self, references: Sequence[Reference]) -> list[bytes | PublishFailure]:
        if self.away:
            raise BrokerUnavailable("nobody answers")
        self.asked += references
        return [self.answers.pop(0) for _ in references]


class Sent:
    """A publisher that records its messages."""

    traits = PublisherTraits()

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def publish(self, batch: Batch) -> None:
        for place, item in enumerate(batch.items):
            if batch.answers[place] is None:
                self.messages.append(decode_body(item.body))
                batch.answers[place] = Done(item.id)

    def refuse(self, item: Claimed, reason: str) -> Any:
        return Dead(item.id, reason)


def large(value: bytes = LARGE) -> Message:
    return Message("g.redelivery", value, b"k", (("h", b"1"),))


def published(broker: Originals, *bodies: bytes) -> tuple[list[Any], list[Message]]:
    """Publish items with these bodies. Return the answers and the sent messages."""
    with open_store("memory:") as store:
        from wheel_sched.store import Item

        store.schedule([Item(f"i{place}", 0, body, "t") for place, body in enumerate(bodies)])
        claim = store.claim(100)
        assert isinstance(claim, Claim)
        batch, sent = Batch(claim, claim.items), Sent()
        OriginalsPublisher(sent, broker).publish(batch)
        return list(batch.answers), sent.messages


def test_a_body_says_where_its_payload_lies() -> None:
    """The body has a reference and not the payload. Decoding it gives an equal message."""
    message = large().by_reference(SOURCE)
    body = encode_body(message)
    assert LARGE not in body
    assert decode_body(body) == message
    reference, _ = split_reference(body)
    assert reference == Reference("g.retry", 3, 17, len(LARGE), digest_of(LARGE))
    assert str(reference) == "g.retry/3/17"
    assert decode_body(encode_body(replace(message, value=b"mended"))).reference is None


@pytest.mark.parametrize("head", [b"R1", b'R1["t",0]\n', b'R1["t",-1,0,0,"d"]\n', b"R1{}\n", b'R1["t",0,"0",0,"d"]\n'])
def test_a_body_that_refers_to_nothing_is_held(head: bytes) -> None:
    """An item with an unreadable reference is held for an operator. Nothing is sent."""
    body = head + encode_body(large(b""))
    with pytest.raises(Rejected, match="has no readable reference"):
        split_reference(body)
    (answer,), sent = published(Originals(), body)
    assert isinstance(answer, Held)
    assert sent == []


def test_payloads_are_put_in_before_messages_are_sent() -> None:
    """The sent message has its payload, key and headers. A message stored with its payload is sent as it is."""
    broker = Originals(LARGE)
    answers, sent = published(broker, encode_body(large().by_reference(SOURCE)), encode_body(large(b"small")))
    assert answers == [Done("i0"), Done("i1")]
    assert sent == [large(), large(b"small")]
    assert [str(reference) for reference in broker.asked] == ["g.retry/3/17"]


def test_a_payload_that_is_gone_makes_a_dead_letter_that_says_so() -> None:
    """If the record is gone or has another payload, the message becomes a dead letter with the reason.
    Others are sent."""
    gone = PublishFailure("original: the record g.retry/3/17 is gone", transient=False)
    bodies = [encode_body(large().by_reference(SOURCE))] * 2
    answers, sent = published(Originals(gone, b"another"), *bodies, encode_body(large(b"small")))
    assert answers[0] == Dead("i0", gone.reason)
    assert isinstance(answers[1], Dead)
    assert "g.retry/3/17 holds another payload now" in answers[1].reason
    assert [message.value for message in sent] == [b"small"]


def test_a_broker_that_is_away_makes_it_wait() -> None:
    """If the broker does not answer, the item fails for now and is not sent."""
    broker = Originals()
    broker.away = True
    (answer,), sent = published(broker, encode_body(large().by_reference(SOURCE)))
    assert isinstance(answer, Failed)
    assert answer.transient
    assert sent == []


def test_a_claim_fetches_so_many_bytes_at_most() -> None:
    """Messages beyond the limit of bytes go back to the store and are due at once. So memory use is limited."""
    message = large().by_reference(SOURCE)
    assert message.reference is not None
    huge = replace(message, reference=replace(message.reference, length=MOST_BYTES - 10))
    answers, _ = published(Originals(LARGE), encode_body(huge), encode_body(message))
    assert isinstance(answers[1], Next)


def test_the_intake_leaves_large_payloads_where_they_are() -> None:
    """Only a payload larger than `reference_above` is stored as a reference. A repeated record is still recognised."""
    with open_store("memory:") as store:
        connection = Connection(store, MemoryBroker(create_topics=True))
        policies = PolicySet(RetryPolicy(delay=Fixed(base_ms=60_000)))
        intake = IntakeFromQueue(connection, "g", policies, reference_above=999, rng=random.Random(1))
        values = {"a": LARGE, "b": LARGE[:999]}
        deliveries = [
            Delivery(
                Message(
                    "g.retry",
                    value,
                    None,
                    write((), RetryState(id=name, attempt=1, original_topic="o")),
                    Source("g.retry", 3, str(17 + place), 1),
                ),
                None,
            )
            for place, (name, value) in enumerate(values.items())
        ]
        intake.store(deliveries)
        first, second = store.get(["a.1", "b.1"], anywhere=True)
        assert first is not None
        assert second is not None
        assert decode_body(first.body).reference == Reference("g.retry", 3, 17, 1_000, digest_of(LARGE))
        assert (decode_body(second.body).value, decode_body(second.body).reference) == (LARGE[:999], None)
        (again,) = intake.store(deliveries[:1], again=True)
        assert again.duplicate
        assert store.counts().total("due") == 2


def test_a_broker_that_cannot_read_records_again_is_refused() -> None:
    """With a broker that cannot read single records again, `RetryService(...)` refuses `reference_above`."""
    with connect("memory:") as connection, pytest.raises(ConfigError, match="cannot read single records again"):
        RetryService(connection, "g", config=ServiceConfig(reference_above=1))
    with pytest.raises(ConfigError, match="reference_above"):
        ServiceConfig(reference_above=-1)
