"""`Groups` reads and writes committed offsets at a real broker, and several groups may share one topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import pytest
from confluent_kafka import TopicPartition

from retry_topic import Consumer, ConsumerConfig, Message, RetryPolicy, RetryService, ServiceConfig, connect
from retry_topic.brokers.conformance import receive
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message.headers import of_another_group, read
from retry_topic.policy import Fixed
from wheel_sched.errors import BrokerError

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


@pytest.fixture
def broker(kafka: TemporaryKafka, name: str) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(kafka.bootstrap, partitions=3)
    broker.create_topic(name)
    yield broker
    broker.close()


def test_what_was_put_is_found_with_its_text(broker: KafkaBroker, name: str) -> None:
    """`places` returns committed offsets with their metadata.

    The result has no partitions without an offset and no absent topics.
    """
    places = [TopicPartition(name, number) for number in range(3)]
    assert broker.groups.places(name, places) == []
    assert broker.groups.places(name, []) == []
    broker.groups.put(name, [TopicPartition(name, 0, 7, "a text"), TopicPartition(name, 2, 0)])
    found = broker.groups.places(name, [*places, TopicPartition(f"{name}-gone", 0)])
    assert [(one.partition, one.offset, one.metadata) for one in found] == [(0, 7, "a text"), (2, 0, None)]
    assert broker.groups.committed(name, broker.topology.places()) == {(name, 0): 7, (name, 2): 0}
    assert broker.groups.committed(f"{name}-other", places) == {}


def test_a_group_with_members_is_read_and_not_written(broker: KafkaBroker, name: str) -> None:
    """A read sees the commits of a member at once. While the group has members, nobody else can commit."""
    assert not any(broker.publish([Message(name, b"%d" % n) for n in range(5)]))
    member = broker.consumer([name], name)
    member.ack(receive(member, 5))
    assert sum(broker.groups.committed(name, broker.topology.places()).values()) == 5
    with pytest.raises(BrokerError, match="could not be committed"):
        broker.groups.put(name, [TopicPartition(name, 0, 0)])
    member.close()


@pytest.mark.parametrize("redelivery", ["group", "origin"])
def test_another_group_of_the_topic_is_not_disturbed(
    kafka: TemporaryKafka, name: str, until: Until, redelivery: Literal["group", "origin"]
) -> None:
    """One group fails each message once. If it has its own redelivery topic, the other group gets no retry. If not, the
    other group gets each retry once and recognises it as a message of another group."""
    orders, ours, theirs = f"{name}-orders", f"{name}-ours", f"{name}-theirs"
    values = {b"%d" % n for n in range(10)}
    tried: Counter[tuple[bytes, int]] = Counter()
    first: Counter[bytes] = Counter()
    passed: Counter[bytes] = Counter()

    def fail_once(message: Message) -> None:
        attempt = read(message.headers).attempt
        tried[message.value, attempt] += 1
        if not attempt and message.value in values:
            raise OSError("not yet")

    def take(message: Message) -> None:
        (passed if of_another_group(message, theirs) else first)[message.value] += 1

    def state() -> object:
        return tried, first, passed

    one_by_one = ConsumerConfig(concurrency=1)  # so this consumer handles its messages in order
    service_config = ServiceConfig(redelivery=redelivery)
    with connect("memory:", broker=KafkaBroker(kafka.bootstrap), namespace=name) as connection:
        connection.broker.create_topic(orders)
        with (
            RetryService(connection, ours, RetryPolicy(delay=Fixed(base_ms=50)), config=service_config),
            Consumer(connection, orders, fail_once, group=ours),
            Consumer(connection, orders, take, group=theirs, config=one_by_one),
        ):
            assert not any(connection.broker.publish([Message(orders, value) for value in values]))
            until(lambda: tried.total() >= 2 * len(values), state)
            assert not any(connection.broker.publish([Message(orders, b"the end")]))
            until(lambda: tried.total() > 2 * len(values) and first.total() > len(values), state)
    assert tried == Counter([(value, attempt) for value in values for attempt in (0, 1)] + [(b"the end", 0)])
    assert first == Counter({*values, b"the end"})
    assert passed == (Counter(values) if redelivery == "origin" else Counter())
