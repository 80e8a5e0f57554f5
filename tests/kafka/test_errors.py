"""A message that the cluster refuses does not affect the others of its batch. Clients can log in with a password."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import admin as _typed_admin

from retry_topic import Consumer, DeadLetters, Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.conformance import receive, values
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.kafka.producing import produce
from retry_topic.brokers.protocol import PublishFailure
from retry_topic.message.encoding import encode_body
from retry_topic.policy import Fixed
from wheel_sched.errors import BrokerError
from wheel_sched.store import Item

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PATIENCE_S = 60.0
_admin: Any = _typed_admin  # the type stubs lack some exported names


def show_only(kafka: TemporaryKafka, topic: str) -> None:
    """Let the user `guest` see a topic, but neither read nor write it."""
    admin = _admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    rule = _admin.AclBinding(
        _admin.ResourceType.TOPIC,
        topic,
        _admin.ResourcePatternType.LITERAL,
        "User:guest",
        "*",
        _admin.AclOperation.DESCRIBE,
        _admin.AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([rule]).values():
        future.result(30)


@pytest.fixture
def host(kafka: TemporaryKafka) -> Iterator[KafkaBroker]:
    """A broker client with all rights."""
    host = KafkaBroker(kafka.bootstrap)
    yield host
    host.close()


def some_refused(kafka: TemporaryKafka, host: KafkaBroker, name: str) -> dict[str, Message]:
    """Make five messages by name. When the user `guest` sends them, the cluster accepts two and refuses three."""
    small, forbidden, good = f"{name}-small", f"{name}-forbidden", f"{name}-good"
    host.topology.create([small], settings={"max.message.bytes": "2000"})
    host.topology.create([forbidden, good])
    show_only(kafka, forbidden)
    return {
        "good-1": Message(good, b"1"),
        "unknown": Message(f"{name}-unknown", b"x"),
        "large": Message(small, random.Random(1).randbytes(10_000)),
        "forbidden": Message(forbidden, b"x"),
        "good-2": Message(good, b"2"),
    }


def assert_refused(reasons: dict[str, str]) -> None:
    """Check the three refusals and their reasons."""
    assert reasons.keys() == {"unknown", "large", "forbidden"}
    assert "unknown topic" in reasons["unknown"]
    assert "too large" in reasons["large"].lower()
    assert "authorization failed" in reasons["forbidden"].lower()


transactions_or_not = pytest.mark.parametrize("transactions", [True, False], ids=["transactions", "no transactions"])


@transactions_or_not
def test_what_is_refused_is_dead_alone_and_the_rest_of_its_claim_goes_out(
    kafka: TemporaryKafka, host: KafkaBroker, name: str, until: Until, transactions: bool
) -> None:
    """Three refused messages become dead letters, and the other two are published.

    Causes: an absent topic, a message too large for its topic, a missing right to write.
    """
    bodies = some_refused(kafka, host, name)
    broker = KafkaBroker(kafka.as_guest(), transactions=transactions)
    with connect("memory:", broker=broker, namespace=name) as connection:
        connection.store.schedule(
            [Item(each, 0, encode_body(message), message.topic) for each, message in bodies.items()]
        )
        with RetryService(connection, name) as service:
            assert service.hand_over == ("transactions" if transactions else "claim, publish, settle")
            until(
                lambda: not connection.store.counts().total("due") + connection.store.counts().total("leased"),
                connection.store.counts,
            )
        reasons = {letter.id: letter.reason for letter in DeadLetters(connection).select()}
    assert_refused(reasons)
    reader = host.consumer([f"{name}-good"], f"{name}-looker")
    assert values(receive(reader, 2)) == [b"1", b"2"]


@transactions_or_not
def test_what_a_consumer_cannot_forward_stays_unsettled_and_the_rest_is_forwarded(
    kafka: TemporaryKafka, host: KafkaBroker, name: str, transactions: bool
) -> None:
    """A consumer forwards five messages and gets three refusals. It settles only the two others."""
    bodies = some_refused(kafka, host, name)
    host.create_topic(f"{name}-in")
    assert not any(host.publish([Message(f"{name}-in", each.encode()) for each in bodies]))
    guest = KafkaBroker(kafka.as_guest(), transactions=transactions)
    member = guest.consumer([f"{name}-in"], name)
    pairs = [(one, bodies[one.message.value.decode()]) for one in receive(member, len(bodies))]
    failures = dict(zip(bodies, member.forward(pairs), strict=True))
    assert_refused({each: failure.reason for each, failure in failures.items() if failure is not None})
    assert not any(failure.transient for failure in failures.values() if failure is not None)
    guest.close()
    again = host.consumer([f"{name}-in"], name)
    assert values(receive(again, 3)) == [b"unknown", b"large", b"forbidden"]
    reader = host.consumer([f"{name}-good"], f"{name}-looker")
    assert values(receive(reader, 2)) == [b"1", b"2"]
    assert again.poll(1, 500) == reader.poll(1, 500) == []


def test_a_refusal_that_arrives_early_is_not_blamed_on_the_next_message(
    kafka: TemporaryKafka, host: KafkaBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster refuses a message while the client still adds messages to its transaction.

    From then on the client adds no further message. Only the refused messages get a failure, each with its own reason.
    """

    def slowly(*args: Any) -> PublishFailure | None:
        answer = produce(*args)
        args[0].poll(0.3)  # the answer of the cluster arrives
        return answer

    bodies = some_refused(kafka, host, name)
    host.create_topic(f"{name}-in")
    assert not any(host.publish([Message(f"{name}-in", each.encode()) for each in bodies]))
    guest = KafkaBroker(kafka.as_guest())
    member = guest.consumer([f"{name}-in"], name)
    pairs = [(one, bodies[one.message.value.decode()]) for one in receive(member, len(bodies))]
    monkeypatch.setattr("retry_topic.brokers.kafka.transactions.produce", slowly)
    failures = dict(zip(bodies, member.forward(pairs), strict=True))
    assert_refused({each: failure.reason for each, failure in failures.items() if failure is not None})
    guest.close()
    reader = host.consumer([f"{name}-good"], f"{name}-looker")
    assert values(receive(reader, 2)) == [b"1", b"2"]


def test_failed_messages_come_back_over_a_login(
    kafka: TemporaryKafka, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients of a service and of a consumer log in. A client with a wrong password gets an error that says so."""
    seen: list[bytes] = []
    done = threading.Event()

    def handle(message: Message) -> None:
        seen.append(message.value)
        if len(seen) < 3:
            raise OSError("not yet")
        done.set()

    with connect("memory:", broker=KafkaBroker(kafka.as_guest()), namespace=name) as connection:
        connection.broker.create_topic(f"{name}-orders")
        policy = RetryPolicy(delay=Fixed(base_ms=50))
        with RetryService(connection, name, policy), Consumer(connection, f"{name}-orders", handle, group=name):
            assert not any(connection.broker.publish([Message(f"{name}-orders", b"one")]))
            assert done.wait(PATIENCE_S)
    assert seen == [b"one"] * 3
    monkeypatch.setattr("retry_topic.brokers.kafka.topology.TIMEOUT_S", 8.0)  # the client tries to log in for this time
    stranger = KafkaBroker(kafka.as_guest("wrong"))
    with pytest.raises(BrokerError, match="Authentication failed"):
        stranger.topics()
    stranger.close()
