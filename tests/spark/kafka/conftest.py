"""Fixtures of the Spark tests that use a real Kafka broker (`make spark-kafka-test`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker
    from tests.servers.kafka import TemporaryKafka

PATIENCE_S = 120.0


@pytest.fixture(scope="session")
def spark_jars() -> list[str]:
    """The jars of Spark's own Kafka connector, which runs in the JVM.

    If they cannot be downloaded, the tests fail, because `make spark-kafka-test` needs Maven anyway.
    """
    from tests.servers.kafka import connector_jars

    return connector_jars()


@pytest.fixture
def broker(kafka: TemporaryKafka) -> Iterator[KafkaBroker]:
    """A client of the test session's broker. It creates topics with three partitions."""
    from retry_topic.brokers.kafka import KafkaBroker

    broker = KafkaBroker(kafka.bootstrap, partitions=3)
    yield broker
    broker.close()


@pytest.fixture
def at(kafka: TemporaryKafka) -> dict[str, str]:
    """The options by which the data source finds the broker."""
    return {"kafka.bootstrap.servers": kafka.bootstrap}


@pytest.fixture
def committed(kafka: TemporaryKafka, broker: KafkaBroker) -> Callable[[str], Counter[str]]:
    """Return a function that counts the values in a topic, as a reader of committed records sees them."""
    return lambda topic: _values(kafka.bootstrap, broker, topic, "read_committed")


@pytest.fixture
def uncommitted(kafka: TemporaryKafka, broker: KafkaBroker) -> Callable[[str], Counter[str]]:
    """Return a function that counts the values in a topic, as a reader of all records sees them."""
    return lambda topic: _values(kafka.bootstrap, broker, topic, "read_uncommitted")


def _values(servers: str, broker: KafkaBroker, topic: str, level: str) -> Counter[str]:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    client: Any = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "looker",
            "auto.offset.reset": "earliest",
            "isolation.level": level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = [TopicPartition(topic, number, 0) for number in range(broker.topology.partitions(topic))]
    client.assign(places)
    found: Counter[str] = Counter()
    left = len(places)
    until_s = time.monotonic() + PATIENCE_S
    while left:
        assert time.monotonic() < until_s, f"{topic}: {left} partitions have not come to their end"
        record = client.poll(1.0)
        if record is None:
            continue
        if record.error() is None:
            found[(record.value() or b"").decode()] += 1
        else:
            assert record.error().code() == KafkaError._PARTITION_EOF, record.error()
            left -= 1
    client.close()
    return found


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Return a function that waits until a condition holds, which other threads or processes bring about."""

    def wait(condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until_s, "waited in vain"
            time.sleep(0.02)  # polls until the deadline

    return wait
