"""A broker that stands still for longer than every lease and timeout: nothing grows, nothing is lost or doubled."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from retry_topic import RetryService, ServiceConfig, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.home import Home
from retry_topic.message import Message
from retry_topic.names import redelivery_topic_of
from retry_topic.wire import encode_body
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.store import MAX_BATCH, Item
from wheel_sched.testing.servers import temporary_server

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PATIENCE_S = 120.0
LEASE_MS = 10_000
AWAY_S = 18.0  # longer than the lease (10 s), a delivery (8 s) and a transaction (15 s) may last
COUNT = 20_000


@pytest.fixture
def home(kafka: TemporaryKafka, name: str) -> Iterator[Home]:
    """A store and the session's broker, that ends a transaction nobody goes on with before the outage is over."""
    broker = KafkaBroker(kafka.bootstrap, partitions=2, transaction_timeout_ms=15_000)
    with temporary_server() as server, connect(server.url, broker=broker, namespace=name) as home:
        yield home


def test_a_broker_that_stands_still(kafka: TemporaryKafka, home: Home, name: str) -> None:
    """No more is claimed than before, the shard stays its owner's, and when the broker goes on all is there once."""
    topic = redelivery_topic_of(name)
    home.broker.create_topic(topic)
    for start in range(0, COUNT, MAX_BATCH):
        numbers = range(start, start + MAX_BATCH)
        home.store.schedule([Item(f"m{n}", 0, encode_body(Message(topic, b"%d" % n)), topic) for n in numbers])
    config = ServiceConfig(dispatcher=DispatcherConfig(lease_ms=LEASE_MS))
    with RetryService(home, name, config=config) as service:
        _until(lambda: service.stats.published > 0)
        with RetryService(home, name, config=config) as standing_by:
            kafka.freeze()
            try:
                before = _memory_mb()
                until_s = time.monotonic() + AWAY_S
                while time.monotonic() < until_s:
                    assert service.stats.in_flight <= 3 * MAX_BATCH
                    time.sleep(0.05)  # the outage lasts as long as it lasts
                grown_mb = _memory_mb() - before
                open_ids = home.store.counts().total("fly")
            finally:
                kafka.thaw()
            assert open_ids <= 2 * MAX_BATCH
            assert grown_mb < 200
            _until(lambda: sum(home.store.counts().total(state) for state in ("due", "fly", "held")) == 0)
            taken = standing_by.stats.published
    assert taken == 0, "the owner's lease has run out"
    assert Counter(_committed(kafka, topic)) == Counter(range(COUNT))


def _until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.05)  # other threads' doing; there is nothing to wait on


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def _committed(kafka: TemporaryKafka, topic: str) -> list[int]:
    """What a reader of committed records finds."""
    client = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "looker",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    client.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    found, ends = [], 0
    until_s = time.monotonic() + PATIENCE_S
    while ends < 2:
        assert time.monotonic() < until_s
        record = client.poll(1.0)
        if record is None:
            continue
        if record.error() is None:
            found.append(int(record.value() or b""))
        else:
            ends += 1  # the end of a partition
    client.close()
    return found
