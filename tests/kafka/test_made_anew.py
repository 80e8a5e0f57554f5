"""Topics that are made anew under a running service: another log, read from its beginning, each record once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.cases import Taken
from retry_topic.names import retry_topic_of
from retry_topic.policy import Fixed
from retry_topic.wire import decode_body

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PATIENCE_S = 120.0


def until(condition: Callable[[], bool], told: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, told()
        time.sleep(0.02)  # other threads' doing; there is nothing to wait on


def made_anew(broker: KafkaBroker, topic: str, partitions: int) -> None:
    """Delete it, and make it again at once."""
    admin: Any = broker.topology.admin
    for future in admin.delete_topics([topic], operation_timeout=30).values():
        future.result(30)
    until(lambda: topic not in admin.list_topics(timeout=30).topics, lambda: topic)
    broker.topology.forget(topic)
    broker.topology.create([topic], partitions)


def test_a_retry_topic_made_anew_is_read_whole_and_once(kafka: TemporaryKafka, name: str) -> None:
    """With more records than the one before it had: none is skipped, none is taken in twice, though the positions in
    the store and the offsets in Kafka are the old one's."""
    taken: list[Taken] = []
    topic = retry_topic_of(name)
    broker = KafkaBroker(kafka.bootstrap, partitions=2)
    policy = RetryPolicy(delay=Fixed(base_ms=3_600_000))
    with connect("memory:", broker=broker, namespace=name) as home:
        broker.create_topic(topic)
        with RetryService(home, name, policy, seen=taken.append):
            sent = 0
            for count in (40, 200, 1_000):
                messages = [Message(topic, b"%d" % n, partition=n % 2) for n in range(sent, sent + count)]
                sent += count
                assert not any(broker.publish(messages))
                until(lambda: len(taken) >= sent, lambda: (len(taken), sent))  # noqa: B023  # called in this round
                if sent < 1_240:
                    made_anew(broker, topic, 2)
        stored = [decode_body(item.body).value for item in home.store.list_items("due", limit=5_000).found]
    assert Counter(stored) == Counter(b"%d" % n for n in range(sent))
    assert len(taken) == sent
    assert not any(one.duplicate for one in taken)
