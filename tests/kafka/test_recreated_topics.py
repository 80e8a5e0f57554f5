"""A topic is deleted and recreated while a service reads it. The whole new topic is read, each record once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.protocol import Delivery
from retry_topic.intake.taken import Taken
from retry_topic.message.encoding import decode_body
from retry_topic.message.topic_names import retry_topic_of
from retry_topic.policy import Fixed

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


def made_anew(broker: KafkaBroker, topic: str, partitions: int, until: Until) -> None:
    """Delete a topic, wait until it is gone, and create it again."""
    admin: Any = broker.topology.admin
    for future in admin.delete_topics([topic], operation_timeout=30).values():
        future.result(30)
    until(lambda: topic not in admin.list_topics(timeout=30).topics, lambda: topic)
    broker.topology.forget(topic)
    broker.topology.create([topic], partitions)


def test_a_retry_topic_recreated_is_read_whole_and_once(kafka: TemporaryKafka, name: str, until: Until) -> None:
    """The new topic has more records than the old one had. No record is skipped or taken in twice, although the
    store's positions and Kafka's offsets belong to the old topic."""
    taken: list[Taken] = []
    topic = retry_topic_of(name)
    broker = KafkaBroker(kafka.bootstrap, partitions=2)
    policy = RetryPolicy(delay=Fixed(base_ms=3_600_000))
    with connect("memory:", broker=broker, namespace=name) as connection:
        broker.create_topic(topic)
        with RetryService(connection, name, policy, seen=taken.append):
            sent = 0
            for count in (40, 200, 1_000):
                messages = [Message(topic, b"%d" % n, partition=n % 2) for n in range(sent, sent + count)]
                sent += count
                assert not any(broker.publish(messages))
                until(lambda: len(taken) >= sent, lambda: (len(taken), sent))  # noqa: B023  # called in this round
                if sent < 1_240:
                    made_anew(broker, topic, 2, until)
        stored = [decode_body(item.body).value for item in connection.store.list_items("due", limit=5_000).found]
    assert Counter(stored) == Counter(b"%d" % n for n in range(sent))
    assert len(taken) == sent
    assert not any(one.duplicate for one in taken)


@pytest.mark.parametrize("held", [0, 40], ids=["settled", "held"])
def test_a_source_topic_recreated_is_read_whole(kafka: TemporaryKafka, name: str, until: Until, held: int) -> None:
    """The present reader and a later one both read the whole new topic. Settling records of the old topic does not
    settle records of the new one at the same offsets."""
    broker = KafkaBroker(kafka.bootstrap)
    broker.create_topic(name)
    consumer = broker.consumer([name], "g")

    def take(count: int) -> list[Delivery]:
        found: dict[bytes, Delivery] = {}

        def more() -> bool:
            found.update((one.message.value, one) for one in consumer.poll(500, 200))
            return len(found) >= count

        until(more, lambda: (len(found), count, consumer))
        return list(found.values())

    old = [Message(name, b"old %d" % n) for n in range(40)]
    assert not any(broker.publish(old))
    deliveries = take(40)
    consumer.ack(deliveries[held:])
    for generation, count in enumerate((40, 100)):
        made_anew(broker, name, 1, until)
        values = [b"%d %d" % (generation, n) for n in range(count)]
        assert not any(broker.publish([Message(name, value) for value in values]))
        consumer.ack(deliveries)
        fresh = take(count)
        assert sorted(one.message.value for one in fresh) == sorted(values)
        consumer.ack(deliveries)  # these deliveries are of the deleted topic
        deliveries = fresh
        consumer.ack(deliveries[held:])
    consumer.close()
    consumer = broker.consumer([name], "g")
    assert {one.message.value for one in take(held)} == {one.message.value for one in deliveries[:held]}
    broker.close()
