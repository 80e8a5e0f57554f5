"""Messages by reference over a real broker: large payloads stay in the retry topic until the broker deletes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from retry_topic import Connection, Consumer, ConsumerConfig, DeadLetters, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.protocol import PublishFailure
from retry_topic.message import Message, Reference, digest_of
from retry_topic.message.encoding import decode_body
from retry_topic.message.headers import read
from retry_topic.message.topic_names import retry_topic_of
from retry_topic.policy import Fixed
from retry_topic.service import ServiceConfig

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

LARGE = bytes(range(256)) * 4_000  # a megabyte


@pytest.fixture
def connection(kafka: TemporaryKafka, name: str) -> Iterator[Connection]:
    """A connection with the test session's broker and a store in the memory of this process."""
    with connect("memory:", broker=KafkaBroker(kafka.bootstrap), namespace=name) as connection:
        connection.broker.create_topic(f"{name}-orders")
        yield connection


def test_a_large_message_comes_back_whole_and_the_store_never_has_it(
    connection: Connection, name: str, until: Until
) -> None:
    """A large message is retried twice, and its payload never enters the store. Small messages are stored as usual."""
    seen: list[tuple[bytes, int]] = []

    def handle(message: Message) -> None:
        attempt = read(message.headers).attempt + 1
        seen.append((message.value, attempt))
        if attempt < 3:
            raise OSError("not yet")

    bodies: list[bytes] = []
    policy = RetryPolicy(delay=Fixed(base_ms=500))
    service = RetryService(connection, name, policy, config=ServiceConfig(reference_above=100_000))
    with service, Consumer(connection, f"{name}-orders", handle, group=name, config=ConsumerConfig(idle_ms=6_000)):
        assert not any(connection.broker.publish([Message(f"{name}-orders", value) for value in (LARGE, b"small")]))
        until(lambda: connection.store.counts().total("due") == 2, connection.store.counts)
        bodies += [item.body for item in connection.store.list_items("due").found]
        until(lambda: len(seen) == 6, connection.store.counts)
    assert sorted(attempt for value, attempt in seen if value == LARGE) == [1, 2, 3]
    assert sorted(attempt for value, attempt in seen if value == b"small") == [1, 2, 3]
    assert max(map(len, bodies)) < 5_000


def test_what_retention_took_is_a_dead_letter_that_says_so(
    connection: Connection, kafka: TemporaryKafka, name: str, until: Until
) -> None:
    """A message whose payload the broker has deleted becomes a dead letter when it is due. The reason says why."""
    policy = RetryPolicy(delay=Fixed(base_ms=3_600_000))
    retries = retry_topic_of(name)
    broker = connection.broker
    assert isinstance(broker, KafkaBroker)
    with RetryService(connection, name, policy, config=ServiceConfig(reference_above=1_000)):
        until(lambda: retries in broker.topics(), connection.store.counts)
        assert not any(broker.publish([Message(retries, b"%d" % n + LARGE) for n in range(2)]))
        until(lambda: connection.store.counts().total("due") == 2, connection.store.counts)
        first, second = sorted(
            connection.store.list_items("due").found, key=lambda item: str(decode_body(item.body).reference)
        )
        kept = decode_body(second.body).reference
        assert kept is not None
        deleted = broker.topology.admin.delete_records([TopicPartition(retries, kept.partition, kept.offset)])
        for future in deleted.values():
            future.result(30)
        for item in (first, second):
            connection.store.reschedule([item.id], 0, route=item.route)
        until(lambda: connection.store.counts().ever.get(("completed", second.topic), 0) == 1, connection.store.counts)
        (letter,) = DeadLetters(connection).select()
    assert letter.id == first.id
    assert letter.reason == (
        f"original: the record {retries}/0/0 ({len(LARGE) + 1:,} bytes) is gone: "
        "retention, compaction or a deletion has taken it"
    )
    assert letter.message is not None
    assert letter.message.reference is not None


def test_records_are_read_again_one_by_one(connection: Connection, name: str) -> None:
    """`originals` reads records for references that are out of order, repeated or far apart.

    A reference after the end of the topic or in an absent topic gives a failure that is not transient.
    """
    topic = f"{name}-orders"
    values = [b"%d" % n for n in range(300)]
    assert not any(connection.broker.publish([Message(topic, value) for value in values]))
    places = [299, 0, 5, 5, 150, 4_000]
    wanted = [Reference(topic, 0, at, 1, digest_of(b"")) for at in places]
    broker = connection.broker
    assert isinstance(broker, KafkaBroker)
    found = broker.originals([*wanted, Reference(f"{name}-none", 0, 0, 1, "")])
    assert found[:5] == [values[at] for at in places[:5]]
    for failure in found[5:]:
        assert isinstance(failure, PublishFailure)
        assert not failure.transient
