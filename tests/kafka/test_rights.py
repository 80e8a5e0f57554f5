"""A right is missing: the log names it, the service is not ready, and it recovers when the right is given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import admin as _typed_admin

from retry_topic import Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.brokers.kafka.transactions import claims_topic
from retry_topic.message.topic_names import dead_topic_of, intake_group_of, redelivery_topic_of, retry_topic_of
from retry_topic.policy import Fixed

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

_admin: Any = _typed_admin  # the type stubs lack some exported names
_types = _admin.ResourceType


@contextmanager
def only(
    kafka: TemporaryKafka, kind: Any, what: str, *rights: str, pattern: str = "LITERAL"
) -> Iterator[Callable[[], None]]:
    """Give the guest only these rights to a resource in the block. The yielded function removes the restriction."""
    admin = _admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    rules = [
        _admin.AclBinding(
            kind,
            what,
            _admin.ResourcePatternType[pattern],
            "User:guest" if right else "User:somebody-else",
            "*",
            _admin.AclOperation[right or "ALL"],
            _admin.AclPermissionType.ALLOW,
        )
        for right in rights or ("",)
    ]
    for future in admin.create_acls(rules).values():
        future.result(30)

    def lift() -> None:
        filters = [
            _admin.AclBindingFilter(
                kind,
                what,
                _admin.ResourcePatternType[pattern],
                None,
                None,
                _admin.AclOperation.ANY,
                _admin.AclPermissionType.ANY,
            )
        ]
        for future in admin.delete_acls(filters).values():
            future.result(30)

    try:
        yield lift
    finally:
        lift()


@pytest.mark.parametrize("missing", ["topic", "group"])
def test_an_intake_that_may_not_read_says_so_and_is_not_ready(
    kafka: TemporaryKafka, name: str, caplog: pytest.LogCaptureFixture, until: Until, missing: str
) -> None:
    """The right READ on the retry topic or on the intake's group is missing. The log says so.

    When the right is given, the intake takes in the records that came meanwhile.
    """
    broker = KafkaBroker(kafka.bootstrap)
    for topic in (retry_topic_of(name), redelivery_topic_of(name), dead_topic_of(name)):
        broker.create_topic(topic)
    assert not any(broker.publish([Message(retry_topic_of(name), b"failed")]))
    broker.close()
    what = (
        (_types.TOPIC, retry_topic_of(name), "DESCRIBE")
        if missing == "topic"
        else (_types.GROUP, intake_group_of(name))
    )
    policy = RetryPolicy(delay=Fixed(base_ms=3_600_000))
    with (
        caplog.at_level(logging.WARNING, "retry_topic.service"),
        only(kafka, *what) as lift,
        connect("memory:", broker=KafkaBroker(kafka.as_guest()), namespace=name) as connection,
        RetryService(connection, name, policy) as service,
    ):
        until(lambda: "needs a right" in caplog.text, lambda: caplog.text)
        assert f"to the {'topic' if missing == 'topic' else 'consumer group'}" in caplog.text
        assert "READ" in caplog.text
        assert not service.ready
        assert connection.store.counts().total("due") == 0
        lift()
        until(lambda: connection.store.counts().total("due") == 1, lambda: (service, caplog.text))
        until(lambda: service.ready, lambda: (service, caplog.text))


@pytest.mark.parametrize("missing", ["id", "group"])
def test_a_take_over_that_is_refused_says_which_right_is_missing(
    kafka: TemporaryKafka,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    until: Until,
    missing: str,
) -> None:
    """A service may not take over its shard, because a right is missing. The log names the right, and the service is
    not ready. When the right is given, due messages are published."""
    # a read of a group that this client may not see gets no answer
    monkeypatch.setattr("retry_topic.brokers.kafka.transactions.READ_S", 3.0)
    kind, pattern, right = (
        (_types.TRANSACTIONAL_ID, "PREFIXED", "transactional id: DESCRIBE and WRITE")
        if missing == "id"
        else (_types.GROUP, "LITERAL", "consumer group: READ")
    )
    broker = KafkaBroker(kafka.bootstrap)
    for topic in (retry_topic_of(name), redelivery_topic_of(name), dead_topic_of(name)):
        broker.create_topic(topic)
    assert not any(broker.publish([Message(retry_topic_of(name), b"failed")]))
    broker.close()
    with (
        caplog.at_level(logging.WARNING, "retry_topic"),
        connect("memory:", broker=KafkaBroker(kafka.as_guest())) as connection,
        only(kafka, kind, claims_topic(connection.store.namespace), pattern=pattern) as lift,
        RetryService(connection, name, RetryPolicy(delay=Fixed(base_ms=10))) as service,
    ):
        until(lambda: right in caplog.text, lambda: caplog.text)
        warnings = {record.getMessage() for record in caplog.records if right in record.getMessage()}
        assert not any("repeat" in text for text in warnings), warnings
        assert not service.ready
        assert connection.store.counts().total("due") == 1
        lift()
        until(lambda: service.stats.published == 1, lambda: (service, caplog.text))
        until(lambda: service.ready, lambda: (service, caplog.text))
