"""The session's broker (`kafka`) and names on it (`name`) are the suite's own; see tests/conftest.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from retry_topic.message import Message
    from wheel_sched.testing.kafka import TemporaryKafka


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group's rebalance takes seconds."""
    monkeypatch.setattr("retry_topic.brokers.conformance.PATIENCE_MS", 60_000)


@pytest.fixture
def committed(kafka: TemporaryKafka) -> Callable[[str], list[Message]]:
    """All that a reader of committed records finds in a topic now."""
    return lambda topic: _committed(kafka.bootstrap, topic)


def _committed(servers: str, topic: str) -> list[Message]:
    from confluent_kafka import Consumer, TopicPartition

    from retry_topic.brokers.kafka.records import from_record

    client: Any = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "looker",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = client.list_topics(topic, timeout=30).topics[topic].partitions
    client.assign([TopicPartition(topic, number, 0) for number in places])
    found: list[Message] = []
    left = len(places)
    until_s = time.monotonic() + 120
    while left:
        assert time.monotonic() < until_s, f"{topic}: {left} partitions have not come to their end"
        record = client.poll(1.0)
        if record is None:
            continue
        if record.error() is None:
            found.append(from_record(record))
        else:
            left -= 1  # the end of a partition
    client.close()
    return found
