"""What `wheel-sched kafka doctor` looks at. Reads only, but for one empty transaction under an id of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import admin as _typed_admin

from retry_topic.brokers.kafka.sender import claims_topic
from retry_topic.brokers.kafka.topology import TIMEOUT_S
from retry_topic.names import dead_topic_of, redelivery_topic_of, retry_topic_of
from wheel_sched.cli.doctor_finding import Finding, ok, problem, warn
from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.errors import BrokerError

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker

_admin: Any = _typed_admin  # which does not say all it exports
_DAY_MINUTES = 1_440


def findings(broker: KafkaBroker, groups: Sequence[str], namespace: str, shards: int) -> Iterator[Finding]:
    """Findings one after the other.

    Raises:
        BrokerUnavailable: the cluster cannot be reached.
    """
    topics = broker.topology.lengths()
    brokers = broker.topology.admin.list_topics(timeout=TIMEOUT_S).brokers
    yield ok("cluster", f"{len(brokers)} brokers, {len(topics)} topics")
    for group in groups:
        yield _topics(broker, group)
    yield _claims(broker, namespace, shards)
    yield _timeouts(broker)
    settings = _settings(broker, min(brokers))
    yield _retention(settings)
    yield _longest_transaction(broker, settings)
    yield _creation(settings)
    if broker.transactions:
        yield _transaction(broker)


def _topics(broker: KafkaBroker, group: str) -> Finding:
    wanted = (retry_topic_of(group), redelivery_topic_of(group), dead_topic_of(group))
    missing = [topic for topic in wanted if not broker.topology.partitions(topic)]
    if missing:
        return problem(f"topics {group}", f"absent: {', '.join(missing)}", f"wheel-sched kafka init {group}")
    return ok(f"topics {group}", ", ".join(f"{topic} ({broker.topology.partitions(topic)})" for topic in wanted))


def _claims(broker: KafkaBroker, namespace: str, shards: int) -> Finding:
    topic = claims_topic(namespace)
    count = broker.topology.partitions(topic)
    if count == 0:
        return warn("claims", f"{topic} is absent", "the first service creates it, or `wheel-sched kafka init`")
    if count < shards:
        return problem("claims", f"{topic} has {count} partitions for {shards} shards", "add partitions to it")
    numbers = broker.groups.committed(topic, [TopicPartition(topic, number) for number in range(shards)])
    known = sum(1 for number in range(shards) if (topic, number) in numbers)
    return ok("claims", f"{topic}: the number of {known} of {shards} shards is known")


def _timeouts(broker: KafkaBroker) -> Finding:
    lease_ms = DispatcherConfig().lease_ms
    order = f"{broker.transaction_timeout_ms} > {lease_ms} > {broker.delivery_timeout_ms} ms"
    if broker.transaction_timeout_ms > lease_ms > broker.delivery_timeout_ms:
        return ok("time-outs", f"transaction > lease > delivery: {order}")
    return problem("time-outs", f"expected transaction > lease > delivery, got: {order}", "see KafkaBroker's arguments")


def _retention(settings: Mapping[str, str]) -> Finding:
    minutes = int(settings.get("offsets.retention.minutes", 7 * _DAY_MINUTES))
    said = f"offsets.retention.minutes={minutes}"
    if minutes < 2 * _DAY_MINUTES:
        return problem("retention", said, "at least 2880: the claims' numbers are committed again once a day")
    return ok("retention", said)


def _longest_transaction(broker: KafkaBroker, settings: Mapping[str, str]) -> Finding:
    longest_ms = int(settings.get("transaction.max.timeout.ms", 900_000))
    said = f"transaction.max.timeout.ms={longest_ms}"
    if longest_ms < broker.transaction_timeout_ms:
        return problem("transactions", said, f"at least {broker.transaction_timeout_ms}, or shorten ours")
    return ok("transactions", said)


def _creation(settings: Mapping[str, str]) -> Finding:
    if settings.get("auto.create.topics.enable") == "true":
        return warn("creation", "auto.create.topics.enable=true: a mistyped topic of another client is a new one", "")
    return ok("creation", "topics are created on purpose only")


def _transaction(broker: KafkaBroker) -> Finding:
    try:
        transactions = broker.transaction_producer(f"wheel-sched-doctor-{uuid.uuid4().hex[:12]}")
        transactions.revive()
        transactions.close()
    except BrokerError as error:
        return problem("rights", f"a transaction could not be begun: {error}", "grant WRITE on transactional ids")
    return ok("rights", "transactions may be begun")


def _settings(broker: KafkaBroker, number: int) -> dict[str, str]:
    """A broker's settings, {} where they may not be read."""
    resource = _admin.ConfigResource(_admin.ResourceType.BROKER, str(number))
    try:
        (future,) = broker.topology.admin.describe_configs([resource], request_timeout=TIMEOUT_S).values()
        return {name: entry.value for name, entry in future.result(TIMEOUT_S).items() if entry.value is not None}
    except KafkaException:
        return {}
