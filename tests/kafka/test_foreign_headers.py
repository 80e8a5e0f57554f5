"""Messages from the retry topics of SmallRye and Pulsar keep their counts and return to their origin."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from retry_topic import Consumer, Message, RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message.headers import read
from retry_topic.message.topic_names import dead_topic_of, retry_topic_of
from retry_topic.policy import Fixed

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


def test_messages_of_smallrye_and_pulsar_go_on_from_their_counts(
    kafka: TemporaryKafka, name: str, committed: Callable[[str], list[Message]], until: Until
) -> None:
    """One message has failed twice in another framework, another message three times.

    With a limit of five they have three and two attempts left. Both return to their origin topic, SmallRye's also to
    its partition. Both keep their own headers.
    """
    now_ms = time.time_ns() // 1_000_000
    foreign = {
        b"smallrye": (
            ("delayed-retry-count", b"1"),
            ("delayed-retry-topic", name.encode()),
            ("delayed-retry-partition", b"2"),
            ("delayed-retry-offset", b"17"),
            ("delayed-retry-original-timestamp", b"%d" % (now_ms - 50_000)),
            ("delayed-retry-first-processing-timestamp", b"%d" % (now_ms - 40_000)),
            ("delayed-retry-exception-class-name", b"java.net.ConnectException"),
        ),
        b"pulsar": (
            ("RECONSUMETIMES", b"3"),
            ("DELAY_TIME", b"1000"),
            ("REAL_TOPIC", name.encode()),
            ("ORIGIN_MESSAGE_ID", b"12:34:0"),
        ),
    }
    seen: dict[bytes, list[int]] = {value: [] for value in foreign}

    def handle(message: Message) -> None:
        assert message.topic == name
        seen[message.value].append(read(message.headers).attempt)
        raise OSError("not yet")

    broker = KafkaBroker(kafka.bootstrap, partitions=3)
    policy = RetryPolicy(delay=Fixed(base_ms=10), max_attempts=5)
    with connect("memory:", broker=broker, namespace=name) as connection:
        broker.create_topic(name)
        broker.create_topic(retry_topic_of(name))
        sent = [Message(retry_topic_of(name), value, b"key", headers) for value, headers in foreign.items()]
        assert not any(broker.publish(sent))
        service = RetryService(connection, name, policy, config=ServiceConfig(redelivery="origin"))
        with service, Consumer(connection, name, handle, group=name):
            until(lambda: connection.store.counts().total("dead") >= 2, lambda: (seen, connection.store.counts()))
    assert seen == {b"smallrye": [2, 3, 4], b"pulsar": [3, 4]}
    letters = {letter.value: letter for letter in committed(dead_topic_of(name))}
    back = committed(name)
    assert letters.keys() == foreign.keys()
    for value, headers in foreign.items():
        state = read(letters[value].headers)
        assert (state.attempt, state.original_topic, letters[value].key) == (5, name, b"key")
        assert letters[value].headers[: len(headers)] == headers
    state = read(letters[b"smallrye"].headers)
    assert (state.original_partition, state.original_offset) == (2, "17")
    assert (state.original_timestamp_ms, state.first_failed_ms) == (now_ms - 50_000, now_ms - 40_000)
    assert read(letters[b"pulsar"].headers).original_offset == "12:34:0"
    places = {
        (message.source.partition, message.source.timestamp_ms)
        for message in [*back, letters[b"smallrye"]]
        if message.value == b"smallrye" and message.source is not None
    }
    assert places == {(2, now_ms - 50_000)}
