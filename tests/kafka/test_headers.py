"""Topics that Java consumers share: this package reads Spring Kafka's headers and writes headers in their form."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from retry_topic import Consumer, Message, RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Fixed

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


def an_int(value: int) -> bytes:
    """A Java int as bytes."""
    return value.to_bytes(4, "big", signed=True)


def test_a_message_goes_from_spring_through_us_and_back(
    kafka: TemporaryKafka, name: str, committed: Callable[[str], list[Message]], until: Until
) -> None:
    """The count of attempts continues from Spring's count. Each delivery has the count in Spring's form.

    The dead letter names its origin. The payload does not change.
    """
    attempts: list[bytes | None] = []

    def handle(message: Message) -> None:
        assert (message.topic, message.value, message.key) == (name, b"\0order", b"key")
        attempts.append(message.header("retry_topic-attempts"))
        raise OSError("the carrier does not answer")

    headers = (
        ("retry_topic-attempts", an_int(3)),  # Spring's count: the next delivery is the third
        ("kafka_original-topic", name.encode()),
        ("kafka_original-partition", an_int(0)),
        ("kafka_original-offset", (17).to_bytes(8, "big")),
        ("kafka_exception-cause-fqcn", b"java.net.ConnectException"),
        ("traceparent", b"00-1-2-01"),
    )
    broker = KafkaBroker(kafka.bootstrap)
    policy = RetryPolicy(delay=Fixed(base_ms=10), max_attempts=4)
    with connect("memory:", broker=broker, namespace=name) as connection:
        broker.create_topic(name)
        broker.create_topic(retry_topic_of(name))
        assert not any(broker.publish([Message(retry_topic_of(name), b"\0order", b"key", headers)]))
        service = RetryService(connection, name, policy, config=ServiceConfig(headers="spring"))
        with service, Consumer(connection, name, handle, group=name):
            until(lambda: connection.store.counts().total("dead") > 0, lambda: (attempts, connection.store.counts()))
    assert attempts == [an_int(3), an_int(4)]
    first, second = committed(redelivery_topic_of(name))
    for message, cause in ((first, b"java.net.ConnectException"), (second, b"builtins.OSError")):
        assert message.header("kafka_original-topic") == name.encode()
        assert message.header("kafka_original-offset") == (17).to_bytes(8, "big")
        assert message.header("kafka_exception-cause-fqcn") == cause
        assert message.header("traceparent") == b"00-1-2-01"
        due_ms = message.header("retry_topic-backoff-timestamp")
        assert due_ms is not None
        assert abs(int.from_bytes(due_ms, "big") / 1000 - time.time()) < 3_600
    (dead,) = committed(dead_topic_of(name))
    assert dead.value == b"\0order"
    assert dead.header("kafka_dlt-original-topic") == name.encode()
    assert dead.header("kafka_dlt-original-partition") == an_int(0)
    assert dead.header("kafka_dlt-exception-message") == b"the carrier does not answer"
    assert dead.header("kafka_dlt-original-consumer-group") == name.encode()
