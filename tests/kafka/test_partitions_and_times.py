"""A failed message returns as it was: in its partition, with its time, key and headers, byte for byte."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import pytest

from retry_topic import Consumer, ConsumerConfig, Message, RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.kafka.records import TOMBSTONE
from retry_topic.message.headers import HEADER_NAMES, read
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Fixed

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

DAY_MS = 86_400_000
ODD: tuple[tuple[str, bytes], ...] = (("trace", b"\0\xff"), ("trace", b"again"), ("", b""), ("kafka_x", b"%d"))

Place = tuple[bytes, bytes | None, tuple[tuple[str, bytes], ...], int | None, int | None]


def place_of(message: Message) -> Place:
    """The parts of a record that a retry must not change: payload, key, foreign headers, partition and time."""
    source = message.source
    headers = tuple(pair for pair in message.headers if pair[0] not in HEADER_NAMES)
    partition = message.partition if source is None else source.partition
    return (
        message.value,
        message.key,
        headers,
        partition,
        message.timestamp_ms if source is None else source.timestamp_ms,
    )


@pytest.mark.parametrize(
    ("redelivery", "ordering", "reference_above"),
    [("group", "key", 1_000), ("origin", "none", 0)],
    ids=["in order and by reference", "to its origin"],
)
def test_failed_messages_come_back_where_they_were(
    kafka: TemporaryKafka,
    name: str,
    committed: Callable[[str], list[Message]],
    until: Until,
    redelivery: Literal["group", "origin"],
    ordering: Literal["none", "key"],
    reference_above: int,
) -> None:
    """Messages with and without a key, a tombstone and a large message fail. All return to their partitions with their
    times. Their dead letters have the same partitions and times."""
    now_ms = time.time_ns() // 1_000_000
    sent = [
        Message(name, b"%d" % n, None, ODD, partition=n % 3, timestamp_ms=now_ms - DAY_MS - n * 1_001) for n in range(9)
    ]
    sent += [
        Message(name, b"keyed %d" % n, b"key", ODD, partition=partition, timestamp_ms=now_ms - 5_000)
        for partition in range(3)
        for n in range(2)  # with ordering, the second message waits behind the first
    ]
    sent.append(Message(name, b"", b"gone", ((TOMBSTONE, b"1"),), partition=1, timestamp_ms=now_ms - 7_000))
    sent.append(Message(name, b"large" * 500, partition=2, timestamp_ms=now_ms - 9_000))
    broker = KafkaBroker(kafka.bootstrap, partitions=3)

    def handle(message: Message) -> None:
        raise OSError("not yet")

    policy = RetryPolicy(delay=Fixed(base_ms=20), max_attempts=2)
    config = ServiceConfig(redelivery=redelivery, reference_above=reference_above)
    with connect("memory:", broker=broker, namespace=name) as connection:
        broker.create_topic(name)
        assert not any(broker.publish(sent))
        service = RetryService(connection, name, policy, config=config)
        with service, Consumer(connection, name, handle, group=name, config=ConsumerConfig(ordering=ordering)):
            until(lambda: connection.store.counts().total("dead") >= len(sent), connection.store.counts)
        letters = committed(dead_topic_of(name))
        back = committed(name if redelivery == "origin" else redelivery_topic_of(name))
    wanted = sorted(map(place_of, sent), key=repr)
    assert sorted(map(place_of, letters), key=repr) == wanted
    assert sorted([place_of(message) for message in back if read(message.headers).attempt], key=repr) == wanted
    assert {place_of(message) for message in back} <= set(wanted)  # parked messages come back on this topic too
    for message in committed(retry_topic_of(name)):
        assert message.source is not None
        assert abs((message.source.timestamp_ms or 0) - now_ms) < 3_600_000  # its own time, not the original


def test_a_time_that_its_topic_would_not_keep_is_reported_in_a_header(
    kafka: TemporaryKafka, name: str, committed: Callable[[str], list[Message]]
) -> None:
    """A record keeps its original time if it is younger than half of its topic's retention and half of the topic's
    `message.timestamp.before.max.ms`. A compacted topic keeps every time."""
    now_ms = time.time_ns() // 1_000_000
    broker = KafkaBroker(kafka.bootstrap)
    broker.topology.create([f"{name}-short"], settings={"retention.ms": "60000"})
    broker.topology.create([f"{name}-strict"], settings={"message.timestamp.before.max.ms": "60000"})
    broker.topology.create([f"{name}-compacted"], settings={"cleanup.policy": "compact", "retention.ms": "60000"})
    topics = [f"{name}-short", f"{name}-strict", f"{name}-compacted"]
    ages_ms = 10_000, 40_000, 40 * DAY_MS
    sent = [
        Message(topic, b"%d" % age_ms, b"k", partition=3, timestamp_ms=now_ms - age_ms)
        for topic in topics
        for age_ms in ages_ms
    ]
    assert not any(broker.publish(sent))
    broker.close()
    kept = {
        topic: [message.value for message in committed(topic) if place_of(message)[4] == now_ms - int(message.value)]
        for topic in topics
    }
    assert kept == {
        f"{name}-short": [b"10000"],
        f"{name}-strict": [b"10000"],
        f"{name}-compacted": [b"10000", b"40000", b"%d" % (40 * DAY_MS)],
    }
