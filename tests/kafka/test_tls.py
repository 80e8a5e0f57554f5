"""Retries over a cluster that accepts only TLS, and a client that does not trust the broker's certificate."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retry_topic import Consumer, Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.conformance import receive, values
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message.topic_names import dead_topic_of
from retry_topic.policy import Fixed
from tests.servers.certificates import self_signed
from tests.servers.kafka import temporary_kafka
from wheel_sched.errors import BrokerError

if TYPE_CHECKING:
    from conftest import Until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


def test_failed_messages_come_back_and_die_over_tls(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    """The clients of consumers, intake, transactions and dead letters log in with SCRAM. One message returns and
    succeeds, the other is dead after its last attempt. A client with another certificate authority gets an error that
    explains it."""
    with temporary_kafka(tls=True) as kafka:
        live_and_die(KafkaBroker(kafka.over_tls()), name, until)
        monkeypatch.setattr("retry_topic.brokers.kafka.topology.TIMEOUT_S", 8.0)
        stranger = self_signed(tmp_path, "stranger").public
        broker = KafkaBroker({**kafka.over_tls(stranger), "log_level": 0})
        with pytest.raises(BrokerError, match=r"certificate could not be verified.*ssl\.ca\.location"):
            broker.topics()
        broker.close()


def live_and_die(broker: KafkaBroker, name: str, until: Until) -> None:
    """Publish a message that fails once and one that always fails. Wait until one succeeds and the other is dead."""
    tried: Counter[bytes] = Counter()

    def handle(message: Message) -> None:
        tried[message.value] += 1
        if message.value == b"dead" or tried[message.value] < 2:
            raise OSError("not yet")

    with connect("memory:", broker=broker, namespace=name) as connection:
        connection.broker.create_topic(f"{name}-orders")
        policy = RetryPolicy(delay=Fixed(base_ms=50), max_attempts=3)
        service = RetryService(connection, name, policy)
        with service, Consumer(connection, f"{name}-orders", handle, group=name) as consumer:
            assert service.hand_over == "transactions"
            assert not any(connection.broker.publish([Message(f"{name}-orders", each) for each in (b"well", b"dead")]))
            until(
                lambda: consumer.stats.acknowledged >= 1 and connection.store.counts().total("dead") >= 1,
                lambda: (tried, consumer.stats, connection.store.counts()),
            )
        reader = connection.broker.consumer([dead_topic_of(name)], f"{name}-looker")
        letters = values([*receive(reader, 1), *reader.poll(1, 500)])
    assert tried == {b"well": 2, b"dead": 3}
    assert letters == [b"dead"]
