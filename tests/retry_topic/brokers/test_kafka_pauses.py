"""Back-pressure and rebalances together, on librdkafka's mock cluster: a paused partition is read again."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from retry_topic import Message
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.kafka.consumer import KafkaConsumer
from retry_topic.brokers.kafka.log import KafkaLog
from tests.servers.mock_cluster import MockCluster

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(240)]

PATIENCE_S = 100.0
COUNT = 3_000  # in each partition: more than a buffer holds


def until(condition: Callable[[], object], describe: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain: {describe()}"


class Reading:
    """A member that reads whole partitions, and the records that it has read."""

    def __init__(self, broker: KafkaBroker, topic: str, group: str) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.log: KafkaLog = broker.log_reader(topic, group, self.positions, idle_ms=6_000)

    def positions(self, sources: Sequence[str]) -> list[int | None]:
        return [self.seen[source][-1] + 1 if self.seen[source] else None for source in sources]

    def parts(self) -> set[int]:
        self.log.beat()
        return {*self.log._parts}

    def take(self) -> int:
        part = self.log.poll(500, 50)
        if part is not None:
            offsets = [int(one.message.source.offset) for one in part.deliveries if one.message.source is not None]
            self.seen[part.source] += offsets
            self.log.done(part)
        return sum(map(len, self.seen.values()))


def filled(imitation: MockCluster, name: str, protocol: Any) -> Callable[[], KafkaBroker]:
    """Fill a topic with more records than the buffers hold. Return a factory of clients for members of a group."""
    imitation.create_topic(name, 2)
    brokers: list[KafkaBroker] = []

    def client() -> KafkaBroker:
        brokers.append(KafkaBroker(imitation.bootstrap, transactions=False, group_protocol=protocol))
        return brokers[-1]

    messages = [Message(name, b"%d" % n, partition=part) for part in (0, 1) for n in range(COUNT)]
    assert not any(client().publish(messages))
    return client


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_intake_reads_a_partition_again_that_went_while_it_was_paused(
    imitation: MockCluster, name: str, protocol: Any
) -> None:
    """Another member joins and leaves while the intake's buffers are full. The intake still reads every record."""
    client = filled(imitation, name, protocol)
    one = Reading(client(), name, f"{name}-a")
    until(lambda: one.parts() == {0, 1} and one.log._paused, lambda: one.log)
    other = Reading(client(), name, f"{name}-a")
    until(lambda: [len(member.parts()) for member in (one, other)] == [1, 1], lambda: (one.log, other.log))
    other.log.close()
    until(lambda: one.take() == 2 * COUNT, lambda: (one.log, {key: len(seen) for key, seen in one.seen.items()}))
    assert [seen == list(range(COUNT)) for seen in one.seen.values()] == [True, True]
    one.log.close()


def test_a_consumer_reads_a_partition_again_that_went_while_it_was_paused(imitation: MockCluster, name: str) -> None:
    """Another member joins and leaves while a consumer's buffer is full. The consumer, which settles records one by
    one, still reads every record."""
    client = filled(imitation, name, "consumer")

    def member() -> KafkaConsumer:
        consumer = client().consumer([name], f"{name}-a", idle_ms=6_000)
        assert isinstance(consumer, KafkaConsumer)
        return consumer

    def parts(consumer: KafkaConsumer) -> int:
        consumer.poll(0, 1)  # a poll shows that the member is alive
        return len(consumer._tracker.partitions)

    one = member()
    until(lambda: parts(one) == 2 and one._loop.back_pressure.paused, lambda: one)
    other = member()
    until(lambda: [parts(member) for member in (one, other)] == [1, 1], lambda: (one, other))
    other.close()
    seen: set[tuple[int, str]] = set()

    def take() -> int:
        deliveries = one.poll(500, 50)
        one.ack(deliveries)
        found = [delivery.message.source for delivery in deliveries]
        seen.update((source.partition, source.offset) for source in found if source is not None)
        return len(seen)

    until(lambda: take() == 2 * COUNT, lambda: (one, len(seen)))
    one.close()


def test_a_client_that_was_left_takes_nothing_with_it(imitation: MockCluster, name: str) -> None:
    """A replaced client may report lost partitions late. By then they belong to the new client, which keeps them."""
    client = filled(imitation, name, "consumer")
    reading = Reading(client(), name, f"{name}-a")
    consumer: Any = client().consumer([name], f"{name}-b", idle_ms=6_000)
    until(lambda: reading.parts() == {0, 1}, lambda: reading.log)
    until(lambda: consumer.poll(1, 50), lambda: consumer)
    places = [TopicPartition(name, part) for part in (0, 1)]
    for left in (reading.log._revoked, consumer._loop._revoked, consumer._loop._lost):
        left(object(), places)
    assert (reading.parts(), len(consumer._tracker.partitions)) == ({0, 1}, 2)
    until(lambda: reading.take() == 2 * COUNT, lambda: reading.log)
    reading.log.close()
    consumer.close()
