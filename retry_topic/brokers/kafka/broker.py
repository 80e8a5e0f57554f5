"""KafkaBroker: topics on a Kafka cluster. The work is done in `producing`, `consumer`, `transactions` and `topology`.

Besides `Broker` it implements `LogBroker`, `PartitionedBroker`, `OriginalsBroker`, `NamesBroker`, `GroupTopicsBroker`
and `ReadersBroker`. The retry service uses `log_reader` for an intake that keeps its position in the store. It uses
`sender` for transactions that carry the number of a claim.

Threads: any thread may call any method.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from confluent_kafka import TopicPartition

from retry_topic.brokers.kafka.client_settings import (
    checked_member,
    combined,
    milliseconds,
    refusals,
    reserved_problems,
)
from retry_topic.brokers.kafka.consumer import KafkaConsumer
from retry_topic.brokers.kafka.groups import Groups
from retry_topic.brokers.kafka.log import KafkaLog
from retry_topic.brokers.kafka.originals import Originals
from retry_topic.brokers.kafka.producing import Placing, Producing
from retry_topic.brokers.kafka.topology import TopicIds, Topology, topic_problem
from retry_topic.brokers.kafka.transactions import KafkaSender, Transactions
from retry_topic.brokers.protocol import PositionsOf, PublishFailure, joining
from retry_topic.message import Message, Reference
from wheel_sched.errors import ConfigError

_DAY_MS = 86_400_000
_KEEP_MS = {"retry": 7 * _DAY_MS, "redelivery": 7 * _DAY_MS, "dead": 30 * _DAY_MS}
# The largest message that our producers send. With the cluster's own limit, a retry topic would refuse a message that
# just fitted into its original topic, because the message has more headers now. Most hosted clusters allow no more.
_LARGEST_BYTES = 8 * 1024 * 1024
_LEAST_BUFFER = 1024 * 1024
_MOST_FETCHED = 1024 * 1024 * 1024  # librdkafka's numbers have 31 bits


class KafkaBroker:
    """Publish to and consume from the topics of a Kafka cluster.

    Args:
        servers: `host:port,host:port`, or librdkafka settings with `bootstrap.servers`. Security (SASL, TLS) and other
            settings of a client are passed through. The settings `group.protocol`, `delivery.timeout.ms` and
            `transaction.timeout.ms` have the same effect as the arguments of these names.
        partitions: number of partitions of topics that this broker creates. Defaults to 1.
        replication: number of copies of these topics; -1 for the cluster's default. Defaults to -1.
        topic_settings: settings of these topics (`retention.ms`, ...). Defaults to the cluster's settings. A group's
            retry, redelivery and dead topics have other defaults: they keep records for 7 days (the dead topic: 30
            days), are never compacted, and accept records of up to 8 MiB.
        create_topics: publishing to an absent topic creates it instead of failing. Defaults to False.
        transactions: use transactions for consume-and-produce and for due messages. Give False for clusters without
            transactions; then only idempotent producers and the headers `retry-id` and `retry-attempt` limit
            duplicates. Defaults to True.
        group_protocol: "classic", or "consumer" for KIP-848 (Kafka 4). Defaults to the settings, else "classic".
        delivery_timeout_ms: the longest time for the delivery of a message to the cluster. It must be shorter than a
            dispatcher's lease. Defaults to the settings, else 8 s.
        transaction_timeout_ms: the cluster aborts the transaction of a dead producer after this time. It must be longer
            than a dispatcher's lease. Defaults to the settings, else 60 s.
        buffer_bytes: about how many bytes of fetched records a consumer or an intake keeps in memory. A single larger
            record is still read. Defaults to 64 MiB.

    Raises:
        ConfigError: lists all problems, including those that librdkafka finds. No connection was opened.
    """

    name = "kafka"

    def __init__(
        self,
        servers: str | Mapping[str, Any],
        *,
        partitions: int = 1,
        replication: int = -1,
        topic_settings: Mapping[str, str] = MappingProxyType({}),
        create_topics: bool = False,
        transactions: bool = True,
        group_protocol: Literal["classic", "consumer"] | None = None,
        delivery_timeout_ms: int | None = None,
        transaction_timeout_ms: int | None = None,
        buffer_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        settings = {"bootstrap.servers": servers} if isinstance(servers, str) else dict(servers)
        problems = reserved_problems(settings)
        protocol = combined(settings, ("group.protocol",), "group_protocol", group_protocol, problems) or "classic"
        aliases = ("delivery.timeout.ms", "message.timeout.ms")
        delivery = combined(settings, aliases, "delivery_timeout_ms", delivery_timeout_ms, problems)
        self.delivery_timeout_ms = milliseconds("delivery_timeout_ms", delivery, 8_000, problems)
        longest = ("transaction.timeout.ms",)
        transaction = combined(settings, longest, "transaction_timeout_ms", transaction_timeout_ms, problems)
        self.transaction_timeout_ms = milliseconds("transaction_timeout_ms", transaction, 60_000, problems)
        if not settings.get("bootstrap.servers"):
            problems.append("expected servers to be host:port, or settings with bootstrap.servers")
        if type(partitions) is not int or partitions < 1:
            problems.append(f"expected partitions to be a whole number from 1 up, got: {partitions!r}")
        if protocol not in ("classic", "consumer"):
            problems.append(f"expected group_protocol to be 'classic' or 'consumer', got: {protocol!r}")
        if type(buffer_bytes) is not int or buffer_bytes < _LEAST_BUFFER:
            problems.append(
                f"expected buffer_bytes to be a whole number from {_LEAST_BUFFER:,} up, got: {buffer_bytes!r}"
            )
        if not 1_000 <= self.delivery_timeout_ms < self.transaction_timeout_ms:
            problems.append(
                "expected 1,000 <= delivery_timeout_ms < transaction_timeout_ms, got: "
                f"{self.delivery_timeout_ms} and {self.transaction_timeout_ms}"
            )
        if problems:
            raise ConfigError(problems)
        self.settings = {
            "socket.timeout.ms": min(10_000, self.transaction_timeout_ms),  # librdkafka refuses more
            "socket.keepalive.enable": True,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "log_level": 3,
            **settings,
        }
        self.create_topics = create_topics
        self.transactions = transactions
        self._group_protocol = protocol
        # half for our buffers; a quarter for the client's queue; a quarter for a fetch into an almost full queue
        self._full_bytes, self._fetch_bytes = buffer_bytes // 2, min(buffer_bytes // 4, _MOST_FETCHED)
        sending = {"transactional.id": "-", "transaction.timeout.ms": self.transaction_timeout_ms}
        problems = refusals(
            settings, lambda: self.producer_settings() | sending, lambda: self.member_settings("-", 30_000)
        )
        if problems:
            raise ConfigError(problems)
        self._replication, self._topic_settings = replication, dict(topic_settings)
        self.topology = Topology(self.settings, partitions, replication, topic_settings)
        self.placing = Placing(self.topology)
        self.groups = Groups(self.settings)
        self._producing: Producing | None = None
        self._originals = Originals(self.settings, self.topology)
        self._members: list[KafkaConsumer | KafkaLog] = []
        self._joining = threading.Lock()

    def __repr__(self) -> str:
        mode = "transactions" if self.transactions else "no transactions"
        return f"<KafkaBroker {self.settings['bootstrap.servers']} {mode}>"

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Produce each message to its topic. Returns one answer for each message: None when the cluster has it.

        Raises:
            BrokerError: a topic is not known yet, and the cluster does not answer or does not create it. Messages to
                other topics may have been sent. Otherwise a message without an answer has a failure in doubt.
        """
        if not messages:
            return []
        if self.create_topics:
            absent = {message.topic for message in messages if not self.topology.partitions(message.topic)}
            if absent:
                self.topology.create(absent)
        if self._producing is None:
            self._producing = Producing(self.producer_settings(), self.topology.partitions, self._timeout_s)
        return self._producing.publish(self.placing.placed(messages))

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> KafkaConsumer:
        """Join `group` on `topics`. Absent topics are created. A new group starts at the beginning of each topic.

        Raises:
            ConfigError: an argument is wrong.
            BrokerError: the cluster refused or does not answer.
        """
        names = joining(topics, group, idle_ms)
        self.topology.create(names)
        member = checked_member(self.member_settings(group, idle_ms))
        transactions = None
        if self.transactions:
            # nobody fences a dead member's producer: the next member waits until its transaction has timed out
            least_ms = max(2 * self.delivery_timeout_ms, int(self.settings["socket.timeout.ms"]))
            timeout_ms = min(self.transaction_timeout_ms, least_ms)
            transactions = self.transaction_producer(f"{group}-{uuid.uuid4().hex[:16]}", timeout_ms)
        consumer = KafkaConsumer(
            member,
            names,
            idle_ms,
            transactions,
            self.publish,
            partial(self.groups.places, group),
            self.placing.placed,
            TopicIds(self.topology),
            self._full_bytes,
        )
        self._joined(consumer)
        return consumer

    def log_reader(self, topic: str, group: str, positions: PositionsOf, *, idle_ms: int = 30_000) -> KafkaLog:
        """Read `topic` as a member of `group`. An absent topic is created. Implements `LogBroker.log_reader`."""
        joining([topic], group, idle_ms)
        self.topology.create([topic])
        member = checked_member(self.member_settings(group, idle_ms))
        log = KafkaLog(member, topic, group, self.topology, self.groups, positions, self._full_bytes)
        self._joined(log)
        return log

    def _joined(self, member: KafkaConsumer | KafkaLog) -> None:
        """Keep a member until it is closed. Without `close`, the thread of a member that nobody uses would run on."""
        with self._joining:
            self._members = [*(one for one in self._members if not one.closed), member]

    def sender(self, namespace: str, shards: int) -> KafkaSender | None:
        """A sender that publishes a store's claims in transactions; None if the broker uses no transactions."""
        if not self.transactions:
            return None
        producers = partial(self.transaction_producer, producers=2)
        return KafkaSender(self.settings, self.topology, producers, self.placing.placed, namespace, shards)

    def originals(self, references: Sequence[Reference]) -> list[bytes | PublishFailure]:
        """The payload of each reference, or why it cannot be read. Implements `OriginalsBroker.originals`."""
        return self._originals.fetch(references)

    def topic_id(self, topic: str) -> str:
        """The permanent id of a topic; the topic's name if the cluster has no ids. A recreated topic has another id."""
        return self.topology.topic_id(topic)

    def topic_problem(self, topic: str) -> str | None:
        """Why Kafka cannot have a topic with this name; None if it can."""
        return topic_problem(topic)

    def create_topic(self, topic: str) -> None:
        """Create `topic` when it is absent.

        Raises:
            ConfigError: Kafka cannot have a topic of this name.
            BrokerError: the cluster refused or does not answer.
        """
        if problem := self.topic_problem(topic):
            raise ConfigError(problem)
        self.topology.create([topic])

    def create_group_topics(self, topics: Mapping[str, str]) -> list[str]:
        """Create the absent topics of a group. Returns the created ones.

        The new topics get the settings that `settings_for` returns; the user's `topic_settings` override these.
        Existing topics keep their settings. Implements `GroupTopicsBroker.create_group_topics`.

        Raises:
            ConfigError: Kafka cannot have a topic with one of these names.
            BrokerError: the cluster refused or does not answer.
        """
        created = []
        for kind, topic in topics.items():
            settings = settings_for(kind, self._replication) | self._topic_settings
            created += self.topology.create([topic], settings=settings)
        return created

    def topics(self) -> dict[str, int]:
        """All topics except the cluster's own, with the number of offsets of each, transaction markers included."""
        return self.topology.lengths()

    def reads(self, group: str, topic: str) -> bool:
        """Whether `group` reads `topic`: it has committed offsets there, or a member with a partition of it.

        Raises:
            BrokerError: the cluster refused or does not answer.
        """
        numbers = range(self.topology.partitions(topic))
        if self.groups.committed(group, [TopicPartition(topic, number) for number in numbers]):
            return True
        return bool(numbers) and topic in self.groups.assigned(group, self.topology.admin)

    def close(self) -> None:
        """Close all consumers and readers, and wait up to two seconds for messages in flight. Idempotent."""
        with self._joining:
            members, self._members = self._members, []
        for member in members:
            member.close()
        self._originals.close()
        if self._producing is not None:
            self._producing.close()

    @property
    def _timeout_s(self) -> float:
        return self.delivery_timeout_ms / 1000

    def transaction_producer(
        self, transactional_id: str, timeout_ms: int | None = None, *, producers: int = 1
    ) -> Transactions:
        """Make transactional producers. After a crash the cluster aborts an open transaction at its timeout.

        Args:
            transactional_id: the newest producer with this id fences all others.
            timeout_ms: the timeout of a transaction. Defaults to None: the broker's `transaction_timeout_ms`.
            producers: the number of producers that take turns. Defaults to 1.
        """
        hasty = {
            # the client asks again while the cluster writes the markers of an earlier transaction
            "retry.backoff.ms": 2,
            "retry.backoff.max.ms": 8,
            "linger.ms": 0,  # a transaction's messages wait in any case until the broker has added their partitions
        }
        timeout_ms = self.transaction_timeout_ms if timeout_ms is None else timeout_ms
        settings = {**self.producer_settings(hasty), "transaction.timeout.ms": timeout_ms}
        topology = self.topology
        return Transactions(
            settings, transactional_id, topology.partitions, self._timeout_s, topology.closed, producers=producers
        )

    def producer_settings(self, ours: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """Settings of an idempotent producer that chooses partitions as the Java client does, with `ours` added."""
        return {
            "linger.ms": 1,
            "partitioner": "murmur2_random",
            "message.max.bytes": _LARGEST_BYTES,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 100_000,
            **ours,
            **self.settings,
            "enable.idempotence": True,
            "delivery.timeout.ms": self.delivery_timeout_ms,
        }

    def member_settings(self, group: str, idle_ms: int) -> dict[str, Any]:
        """Settings of a group member that reads only committed records. The client commits no offsets by itself."""
        classic = {
            "session.timeout.ms": max(6_000, idle_ms),  # the least that a cluster with default settings accepts
            "heartbeat.interval.ms": max(500, min(3_000, idle_ms // 3)),
            "partition.assignment.strategy": "cooperative-sticky",
        }
        return {
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": max(300_000, 2 * idle_ms),
            "fetch.wait.max.ms": 100,
            "fetch.max.bytes": max(self._fetch_bytes, int(self.settings.get("message.max.bytes", 1_000_000))),
            "queued.max.messages.kbytes": max(1, self._fetch_bytes // 1024),
            "fetch.queue.backoff.ms": 20,  # how soon the client checks a full queue again; the default is 1 s
            "fetch.error.backoff.ms": 100,
            "group.protocol": self._group_protocol,
            **(classic if self._group_protocol == "classic" else {}),
            **self.settings,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }


def settings_for(kind: str, replication: int) -> dict[str, str]:
    """Settings of a group's "retry", "redelivery" or "dead" topic that has `replication` copies (-1: the cluster's
    default).

    Records are deleted by age and never compacted, independently of the cluster's default, because messages with equal
    keys are different messages. With several copies, the topic works while one broker is down, and all brokers in
    sync have every confirmed record.
    """
    settings = {
        "cleanup.policy": "delete",
        "retention.ms": str(_KEEP_MS[kind]),
        "max.message.bytes": str(_LARGEST_BYTES),
    }
    if replication > 1:
        settings["min.insync.replicas"] = str(min(2, replication - 1))
    return settings
