"""The user's connection settings reach every Kafka client that the broker makes."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from retry_topic import RetryService, ServiceConfig, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.kafka.broker import settings_for
from retry_topic.brokers.kafka.client_settings import checked_member, refusals
from retry_topic.brokers.kafka.topology import _listened_to
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.errors import BrokerUnavailable, ConfigError

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
PASSWORD = "a-password-nobody-may-see"
_HELLO = b"\x16\x03"  # the first bytes that a TLS client sends

CLIENTS: dict[str, Callable[[KafkaBroker], Any]] = {
    "producer": lambda broker: Producer(broker.producer_settings()),
    "transactions": lambda broker: Producer(broker.transaction_producer("id")._settings),
    "member": lambda broker: Consumer(broker.member_settings("g", 6_000)),
    "originals": lambda broker: Consumer(broker._originals._settings),
    "admin": lambda broker: AdminClient(broker.settings),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_every_client_speaks_tls_when_the_settings_say_so(kind: str) -> None:
    """The first bytes that each client sends are those of a TLS handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        settings = {"security.protocol": "ssl", "log_level": 0}
        broker = KafkaBroker({"bootstrap.servers": f"127.0.0.1:{listener.getsockname()[1]}", **settings})
        client = CLIENTS[kind](broker)
        if isinstance(client, Consumer):
            client.subscribe(["t"])  # otherwise the consumer would not connect
        hellos = []
        for _ in range(2):  # one connection may be of another client of the broker
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(30)
                hellos.append(connection.recv(2))
            client.poll(0)
        del client
    assert hellos == [_HELLO] * 2


def test_settings_are_passed_through_and_ours_are_refused() -> None:
    """SASL and other librdkafka settings reach members, producers and readers.

    Settings that the broker itself sets, such as `group.id`, are refused.
    """
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
    with pytest.raises(ConfigError, match=r"expected no setting group\.id"):
        KafkaBroker({"bootstrap.servers": "127.0.0.1:1", "group.id": "mine"})


def test_a_certificate_that_nobody_vouches_for_is_reported_with_what_to_set() -> None:
    """If the client's error does not say which setting to correct, the broker adds the setting to the error."""
    trouble: deque[str] = deque(maxlen=1)
    report = _listened_to({}, trouble)["error_cb"]
    report(KafkaError(KafkaError._SSL, "error:0A000086:SSL routines::certificate verify failed (after 2ms)"))
    assert "ssl.ca.location must name a certificate authority's file" in trouble[0]
    advice = "certificate verify failed: verify that ssl.ca.location is correctly configured"
    report(KafkaError(KafkaError._SSL, advice))
    assert trouble[0] == advice


def test_a_cluster_that_is_away_is_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the cluster does not answer, the error contains the reason ("Connection refused"), which librdkafka reports
    separately."""
    monkeypatch.setattr("retry_topic.brokers.kafka.topology.TIMEOUT_S", 0.1)
    broker = KafkaBroker(NOWHERE | {"log_level": 0})
    report, until_s = "", time.monotonic() + 30
    while "Connection refused" not in report:
        assert time.monotonic() < until_s, report
        with pytest.raises(BrokerUnavailable, match="the list of topics could not be read") as caught:
            broker.topics()
        report = str(caught.value)


def test_both_protocols_of_groups_are_requested_as_set() -> None:
    """Members use the configured group protocol. With KIP-848 they send no session settings."""
    classic = KafkaBroker("127.0.0.1:1").member_settings("g", 30_000)
    newer = KafkaBroker("127.0.0.1:1", group_protocol="consumer").member_settings("g", 30_000)
    assert (classic["group.protocol"], classic["session.timeout.ms"]) == ("classic", 30_000)
    assert newer["group.protocol"] == "consumer"
    assert "session.timeout.ms" not in newer


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sasl.jaas.config": f"PlainLoginModule password={PASSWORD};"}, "sasl.jaas.config .* give sasl.mechanism"),
        ({"ssl.truststore.location": "/t.jks"}, "ssl.truststore.location .* give ssl.ca.location"),
        ({"key.serializer": "org.apache.kafka.StringSerializer"}, "key.serializer .* leave it out"),
        ({"securty.protocol": "SSL"}, "setting securty.protocol .* No such configuration property"),
        ({"security.protocol": "SASL_SLL"}, "setting security.protocol .* Invalid value"),
        ({"linger.ms": "soon"}, "setting linger.ms .* Invalid value"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "sasl.username and sasl.password must"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}, "ssl.ca.location failed"),
        ({"security.protocol": PASSWORD, "sasl.password": PASSWORD}, r'Invalid value "\*\*\*"'),
        ({"acks": "1"}, "`acks` must be set to `all`"),
        ({"max.poll.interval.ms": 1_000}, "session.timeout.ms"),
        ({"group.protocol": "consumer", "session.timeout.ms": "6000"}, "not supported for `group.protocol=consumer`"),
        ({"group.protocol": "newest"}, "group_protocol to be 'classic' or 'consumer', got: 'newest'"),
        ({"delivery.timeout.ms": "soon"}, "delivery_timeout_ms to be a whole number of milliseconds"),
        ({"delivery.timeout.ms": "120000"}, "delivery_timeout_ms < transaction_timeout_ms, got: 120000 and 60000"),
        ({"error_cb": 5}, "expected error_cb property as a callable"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_librdkafka_does_not_take_is_reported_at_once_and_in_words(settings: dict[str, Any], reason: str) -> None:
    """`KafkaBroker(...)` raises the error, which explains the wrong setting and contains no secret."""
    with pytest.raises(ConfigError, match=reason) as caught:
        KafkaBroker(NOWHERE | settings)
    assert PASSWORD not in str(caught.value)


def test_every_wrong_setting_is_reported() -> None:
    """One error lists all wrong settings by name."""
    with pytest.raises(ConfigError) as caught:
        KafkaBroker({**NOWHERE, "key.serializer": "x", "linger.ms": "soon", "client.id": "fine"})
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("name", ["delivery.timeout.ms", "message.timeout.ms"])
def test_settings_that_stand_for_an_argument_are_taken_for_it(name: str) -> None:
    """A property such as `delivery.timeout.ms` sets the broker's argument with the same meaning. Different values for
    the property and the argument are an error."""
    properties = {name: "9000", "transaction.timeout.ms": "30000", "group.protocol": "Consumer"}
    broker = KafkaBroker(NOWHERE | properties)
    assert (broker.delivery_timeout_ms, broker.transaction_timeout_ms) == (9_000, 30_000)
    assert broker.producer_settings()["delivery.timeout.ms"] == 9_000
    assert not {*properties} & {*broker.settings}
    member = broker.member_settings("g", 30_000)
    assert member["group.protocol"] == "consumer"
    assert "session.timeout.ms" not in member
    with pytest.raises(ConfigError, match=rf"{name} of the settings and delivery_timeout_ms to agree") as caught:
        KafkaBroker(NOWHERE | properties, delivery_timeout_ms=8_000, group_protocol="classic")
    assert len(caught.value.problems) == 2


def test_a_callback_for_tokens_is_not_called_by_the_trial() -> None:
    """The check of the settings does not call `oauth_cb`, so there is no login before the first request."""
    asked: list[object] = []
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "OAUTHBEARER"}

    def token(config: object) -> tuple[str, float]:
        asked.append(config)
        return "token", 4e9

    settings = NOWHERE | login | {"oauth_cb": token, "log_level": 0}
    assert refusals(settings, lambda: settings, lambda: {**settings, "group.id": "g"}) == []
    assert asked == []


def test_a_member_that_waits_longer_than_the_settings_let_it_is_refused() -> None:
    """`max.poll.interval.ms` must be long enough for the member's `idle_ms`."""
    broker = KafkaBroker(NOWHERE | {"max.poll.interval.ms": 100_000})
    assert checked_member(broker.member_settings("g", 30_000))
    with pytest.raises(ConfigError, match=r"max\.poll\.interval\.ms"):
        checked_member(broker.member_settings("g", 200_000))


@pytest.mark.parametrize(("replication", "least"), [(-1, None), (1, None), (2, "1"), (3, "2"), (5, "2")])
def test_a_groups_topics_are_created_as_they_are_used(replication: int, least: str | None) -> None:
    """Records are deleted by age and never compacted. The topics accept the producer's largest message, and they accept
    writes while one broker is down."""
    for kind, days in (("retry", 7), ("redelivery", 7), ("dead", 30)):
        settings = settings_for(kind, replication)
        assert settings.pop("min.insync.replicas", None) == least
        assert settings == {
            "cleanup.policy": "delete",
            "retention.ms": str(days * 86_400_000),
            "max.message.bytes": str(KafkaBroker("127.0.0.1:1").producer_settings()["message.max.bytes"]),
        }


@pytest.mark.parametrize(("lease_ms", "warned"), [(10_000, False), (8_000, True), (60_000, True)])
def test_a_service_says_that_its_time_outs_are_in_another_order(
    lease_ms: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A lease that does not fit Kafka's timeouts causes a warning only: claims may be published later,
    but still once."""
    config = ServiceConfig(dispatcher=DispatcherConfig(lease_ms=lease_ms))
    with connect("memory:", broker=KafkaBroker(NOWHERE)) as connection:
        service = RetryService(connection, "g", config=config)
        service._warn_of_timeouts()
        service.stop()
    assert ("service.timeouts" in caplog.text) == warned
