"""The checks of `wheel-sched kafka doctor`. They change nothing. One check only makes a transactional producer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import admin as _typed_admin

from retry_topic.brokers.kafka.topology import TIMEOUT_S
from retry_topic.brokers.kafka.transactions import claims_topic
from wheel_sched.config import Settings
from wheel_sched.errors import BrokerError, NotDone, WheelSchedError
from wheel_sched.management.doctor.finding import Finding, ok, problem, warn
from wheel_sched.management.opening import opened
from wheel_sched.management.wording import amount
from wheel_sched.store import MAX_BATCH

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker

_admin: Any = _typed_admin  # the module's type hints lack some of its classes
_DAY_MINUTES = 1_440
_PAGES = 40  # at most this many pages of held messages are searched


@dataclass(frozen=True, slots=True)
class CheckedGroups:
    """The groups to check.

    Args:
        topics: the topics of each group, by purpose ("retry", "redelivery", "dead").
        settings: settings of the command line, which name the store and its namespace.
        shards: the shard count of the namespace.
        lease_ms: the lease of the groups' dispatchers.
    """

    topics: Mapping[str, Mapping[str, str]]
    settings: Settings
    shards: int
    lease_ms: int


def findings(broker: KafkaBroker, checked: CheckedGroups) -> Iterator[Finding]:
    """Run the checks; yields each finding as soon as its check has run.

    Raises:
        BrokerUnavailable: the cluster cannot be reached.
    """
    topics = broker.topology.lengths()
    brokers = broker.topology.admin.list_topics(timeout=TIMEOUT_S).brokers
    yield ok("cluster", f"{len(brokers)} brokers, {len(topics)} topics")
    for group, own in checked.topics.items():
        yield _topics(broker, group, own)
        yield _copies(broker, group, [topic for topic in own.values() if topic in topics], len(brokers))
    yield _claims(broker, checked.settings.namespace, checked.shards)
    yield in_doubt(checked.settings)
    yield timeouts(broker, checked.lease_ms)
    settings = _settings(broker, _admin.ResourceType.BROKER, [str(min(brokers))])[str(min(brokers))]
    yield retention(settings)
    yield longest_transaction(settings, broker.transaction_timeout_ms)
    yield creation(settings)
    if broker.transactions:
        yield _transaction(broker)


def _topics(broker: KafkaBroker, group: str, own: Mapping[str, str]) -> Finding:
    missing = [topic for topic in own.values() if not broker.topology.partitions(topic)]
    if missing:
        return problem(f"topics {group}", f"absent: {', '.join(missing)}", f"wheel-sched kafka init {group}")
    return ok(f"topics {group}", ", ".join(f"{name} ({broker.topology.partitions(name)})" for name in own.values()))


def _copies(broker: KafkaBroker, group: str, topics: Sequence[str], brokers: int) -> Finding:
    if not topics:
        return ok(f"copies {group}", "no topics yet")
    counts = _copies_of(broker, topics)
    least = {
        name: int(found.get("min.insync.replicas", 1))
        for name, found in _settings(broker, _admin.ResourceType.TOPIC, topics).items()
    }
    return copies(group, counts, least, brokers)


def copies(group: str, counts: Mapping[str, tuple[int, int]], least: Mapping[str, int], brokers: int) -> Finding:
    """Check the copies (replicas) of a group's topics.

    Args:
        group: the group.
        counts: for each topic, how many replicas and how many in-sync replicas its worst partition has.
        least: for each topic, how many replicas must be in sync for a write (`min.insync.replicas`).
        brokers: number of brokers in the cluster.
    """
    check = f"copies {group}"
    for topic, (there, in_sync) in counts.items():
        needed = least.get(topic, 1)
        fact = f"{topic}: {in_sync} of {there} copies in sync, min.insync.replicas={needed}"
        if needed > there:
            return problem(check, fact, "nothing can be written: lower min.insync.replicas, or add copies")
        if needed > in_sync:
            return problem(check, fact, "nothing can be written until more brokers are back")
        if there > 1 and needed == there:
            return warn(check, fact, "one broker that is away stops all writes: set it to one less than the copies")
        if there == 1 and brokers > 1:
            return warn(check, fact, "the loss of a broker loses the topic: add copies")
        if there > 1 and needed == 1:
            return warn(check, fact, "records that one broker alone confirmed are lost with it: min.insync.replicas=2")
    return ok(check, ", ".join(f"{topic} {in_sync}/{there}" for topic, (there, in_sync) in counts.items()))


def _claims(broker: KafkaBroker, namespace: str, shards: int) -> Finding:
    topic = claims_topic(namespace)
    count = broker.topology.partitions(topic)
    if count == 0:
        return warn("claims", f"{topic} is absent", "the first service creates it, or `wheel-sched kafka init`")
    if count < shards:
        return problem(
            "claims", f"{topic} has {amount(count, 'partition')} for {shards} shards", "add partitions to it"
        )
    numbers = broker.groups.committed(topic, [TopicPartition(topic, number) for number in range(shards)])
    known = sum(1 for number in range(shards) if (topic, number) in numbers)
    return ok("claims", f"{topic}: the last claim number of {known} of {shards} shards is known")


def in_doubt(settings: Settings) -> Finding:
    """Look for messages that are held because nobody knows whether they were published.

    This happens when the cluster has deleted the committed number of a shard's last claim. At most 20,000 held messages
    are read.
    """
    try:
        with opened(settings) as store:
            found, cursor = 0, None
            for _ in range(_PAGES):
                page = store.list_items("held", cursor=cursor, limit=MAX_BATCH)
                found += sum(1 for item in page.found if item.reason.startswith("in-doubt"))
                cursor = page.cursor
                if cursor is None:
                    break
    except NotDone:
        return ok("in doubt", f"namespace {settings.namespace} does not exist yet")
    except WheelSchedError as error:
        return warn("in doubt", f"the store could not be asked: {error}", "name it with --store")
    if found:
        return problem(
            "in doubt",
            f"{found} messages are held: nobody knows whether they were published",
            "look for their retry-id in the redelivery topic; then `wheel-sched delete` what is there, and "
            "`wheel-sched run-now --state held --error 'in-doubt*'` for the rest",
        )
    return ok("in doubt", "none")


def timeouts(broker: KafkaBroker, lease_ms: int) -> Finding:
    """Check that the lease is longer than the delivery time-out and shorter than the transaction time-out."""
    order = f"{broker.transaction_timeout_ms} > {lease_ms} > {broker.delivery_timeout_ms} ms"
    if broker.transaction_timeout_ms > lease_ms > broker.delivery_timeout_ms:
        return ok("time-outs", f"transaction > lease > delivery: {order}")
    fix = "set transaction.timeout.ms and delivery.timeout.ms of the client, or lease_ms of the dispatchers"
    return problem("time-outs", f"expected transaction > lease > delivery, got: {order}", fix)


def retention(settings: Mapping[str, str]) -> Finding:
    """Check that the cluster keeps committed offsets for two days or more.

    The owner of a shard commits the number of the last claim that it has sent, as an offset of the topic of claims.
    The owner commits the number again once a day, so that the cluster does not delete it.
    """
    minutes = int(settings.get("offsets.retention.minutes", 7 * _DAY_MINUTES))
    fact = f"offsets.retention.minutes={minutes}"
    if minutes < 2 * _DAY_MINUTES:
        return problem("retention", fact, "at least 2880: the claims' numbers are committed again once a day")
    return ok("retention", fact)


def longest_transaction(settings: Mapping[str, str], ours_ms: int) -> Finding:
    """Check that the cluster allows the transaction time-out of this client."""
    longest_ms = int(settings.get("transaction.max.timeout.ms", 900_000))
    fact = f"transaction.max.timeout.ms={longest_ms}"
    if longest_ms < ours_ms:
        return problem(
            "transactions", fact, f"set at least {ours_ms}, or a shorter transaction.timeout.ms of the client"
        )
    return ok("transactions", fact)


def creation(settings: Mapping[str, str]) -> Finding:
    """Check that the cluster does not create a topic when a client names a topic that does not exist."""
    if settings.get("auto.create.topics.enable") == "true":
        fix = "set it to false on the brokers"
        return warn("creation", "auto.create.topics.enable=true: another client that mistypes a topic creates it", fix)
    return ok("creation", "topics are created on purpose only")


def _transaction(broker: KafkaBroker) -> Finding:
    try:
        transactions = broker.transaction_producer(f"wheel-sched-doctor-{uuid.uuid4().hex[:12]}")
        transactions.revive()
        transactions.close()
    except BrokerError as error:
        return problem("rights", f"a transaction could not be begun: {error}", "grant WRITE on transactional ids")
    return ok("rights", "transactions may be begun")


def _copies_of(broker: KafkaBroker, topics: Sequence[str]) -> dict[str, tuple[int, int]]:
    """For each topic, how many replicas and how many in-sync replicas its worst partition has.

    The worst partition has the fewest replicas and, among these partitions, the fewest in-sync replicas. Topics that
    the cluster does not list for this client are left out.
    """
    found = broker.topology.admin.list_topics(timeout=TIMEOUT_S).topics
    return {
        topic: min((len(one.replicas), len(one.isrs)) for one in found[topic].partitions.values())
        for topic in topics
        if topic in found and found[topic].partitions
    }


def _settings(broker: KafkaBroker, kind: Any, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings of brokers or topics; {} for a broker or topic whose settings this user may not read."""
    resources = [_admin.ConfigResource(kind, name) for name in names]
    found: dict[str, dict[str, str]] = {}
    for resource, future in broker.topology.admin.describe_configs(resources, request_timeout=TIMEOUT_S).items():
        try:
            entries = future.result(TIMEOUT_S).items()
            found[resource.name] = {name: entry.value for name, entry in entries if entry.value is not None}
        except KafkaException:
            found[resource.name] = {}
    return found
