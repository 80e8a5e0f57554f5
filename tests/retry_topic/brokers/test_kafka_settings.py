"""What a user sets for the connection reaches every client that is made of it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from retry_topic.brokers.kafka import KafkaBroker
from wheel_sched.errors import ConfigError

_HELLO = b"\x16\x03"  # how a TLS client begins

CLIENTS: dict[str, Callable[[KafkaBroker], Any]] = {
    "producer": lambda broker: Producer(broker.producer_settings()),
    "transactions": lambda broker: Producer(broker.transaction_producer("id")._settings),
    "member": lambda broker: Consumer(broker.member_settings("g", 6_000)),
    "originals": lambda broker: Consumer(broker._originals._settings),
    "admin": lambda broker: AdminClient(broker.settings),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_every_client_speaks_tls_when_it_is_told_to(kind: str) -> None:
    """Its first bytes are a TLS client's, whatever it is for."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        settings = {"security.protocol": "ssl", "log_level": 0}
        broker = KafkaBroker({"bootstrap.servers": f"127.0.0.1:{listener.getsockname()[1]}", **settings})
        client = CLIENTS[kind](broker)
        if isinstance(client, Consumer):
            client.subscribe(["t"])  # else it has nothing to connect for
        hellos = []
        for _ in range(2):  # one may be the broker's own
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(30)
                hellos.append(connection.recv(2))
            client.poll(0)
        del client
    assert hellos == [_HELLO] * 2


def test_settings_are_passed_through_and_ours_are_refused() -> None:
    """SASL and whatever else librdkafka knows, to members, producers and readers alike."""
    login = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "u"}
    broker = KafkaBroker({"bootstrap.servers": "127.0.0.1:1", "sasl.password": "p", **login, "log_level": 0})
    for settings in (
        broker.settings,
        broker.producer_settings(),
        broker.member_settings("g", 6_000),
        broker.transaction_producer("id")._settings,
        broker._originals._settings,
    ):
        assert {name: settings[name] for name in login} == login
    with pytest.raises(ConfigError, match=r"expected group\.id to be left to us"):
        KafkaBroker({"bootstrap.servers": "127.0.0.1:1", "group.id": "mine"})


def test_both_protocols_of_groups_are_asked_for_as_told() -> None:
    """KIP-848's takes no session settings of the member's."""
    classic = KafkaBroker("127.0.0.1:1").member_settings("g", 30_000)
    newer = KafkaBroker("127.0.0.1:1", group_protocol="consumer").member_settings("g", 30_000)
    assert (classic["group.protocol"], classic["session.timeout.ms"]) == ("classic", 30_000)
    assert newer["group.protocol"] == "consumer"
    assert "session.timeout.ms" not in newer
