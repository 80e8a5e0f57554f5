"""Offsets of groups over a real broker, whoever is a member of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from retry_topic import Message
from retry_topic.brokers.kafka import KafkaBroker
from wheel_sched.errors import BrokerError

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

PATIENCE_S = 60.0


@pytest.fixture
def broker(kafka: TemporaryKafka, name: str) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(kafka.bootstrap, partitions=3)
    broker.create_topic(name)
    yield broker
    broker.close()


def test_what_was_put_is_found_with_its_text(broker: KafkaBroker, name: str) -> None:
    """Of the partitions asked for; one without an offset and a topic that is gone are left out."""
    places = [TopicPartition(name, number) for number in range(3)]
    assert broker.groups.places(name, places) == []
    assert broker.groups.places(name, []) == []
    broker.groups.put(name, [TopicPartition(name, 0, 7, "a text"), TopicPartition(name, 2, 0)])
    found = broker.groups.places(name, [*places, TopicPartition(f"{name}-gone", 0)])
    assert [(one.partition, one.offset, one.metadata) for one in found] == [(0, 7, "a text"), (2, 0, None)]
    assert broker.groups.committed(name, broker.topology.places()) == {(name, 0): 7, (name, 2): 0}
    assert broker.groups.committed(f"{name}-other", places) == {}


def test_a_group_with_members_is_read_and_not_written(broker: KafkaBroker, name: str) -> None:
    """What its member has settled is seen at once; nobody else says how far it is."""
    assert not any(broker.publish([Message(name, b"%d" % n) for n in range(5)]))
    member = broker.consumer([name], name)
    settled = 0
    until_s = time.monotonic() + PATIENCE_S
    while settled < 5:
        assert time.monotonic() < until_s
        deliveries = member.poll(5, 500)
        member.ack(deliveries)
        settled += len(deliveries)
    assert sum(broker.groups.committed(name, broker.topology.places()).values()) == 5
    with pytest.raises(BrokerError, match="could not be committed"):
        broker.groups.put(name, [TopicPartition(name, 0, 0)])
    member.close()
