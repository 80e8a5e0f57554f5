"""The broker protocol: what consumers and the retry service need from a message broker.

Implementations: `memory` (one process, for tests and examples), `redis_streams` (the embedded default) and `kafka`.
Each passes the public suite in `retry_topic.brokers.conformance`. All methods block.

Threads: any thread may use a `Broker`. Two threads may use a `BrokerConsumer`: one calls `poll`, the other `ack` and
`forward`. Any thread may call `beat` at any time; call `close` when no thread polls or settles any more.

Delivery is at least once: the broker hands out a delivery again, with `deliveries` raised by one, when the consumer
neither settles it nor keeps it alive with `beat` for `idle_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from retry_topic.message import Message, Reference
from wheel_sched.errors import BrokerError, BrokerUnavailable, ConfigError


@dataclass(slots=True, unsafe_hash=True)
class Delivery:
    """A message that a consumer has received and not settled.

    Args:
        message: the message, with its `source`.
        handle: the broker's own data for settling it; no other code looks into it.
        deliveries: how often the broker has handed it out. More than 1 when a consumer died, hung or did not settle it.
    """

    message: Message
    handle: Any
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class PublishFailure:
    """Why one message of a batch was not published.

    Args:
        reason: why, in plain words of at most 500 characters.
        transient: True if the same message may succeed later (the broker is away or throttles), False if it never will
            (the topic is unknown, the record is too large).
        in_doubt: True if the reply was lost, so that the broker may have the message.
    """

    reason: str
    transient: bool = True
    in_doubt: bool = False


@runtime_checkable
class BrokerConsumer(Protocol):
    """One member of a consumer group."""

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        """Up to `limit` deliveries; those without a `beat` for `idle_ms` come first. Waits up to `timeout_ms`."""
        ...

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries: the broker does not hand them out again. Repeating the call is harmless."""
        ...

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        """Publish each message and settle its delivery, atomically if the broker can.

        A broker that cannot do both atomically publishes first and settles afterwards. A crash in between causes a
        duplicate, never a loss. If a message is not published, its delivery stays unsettled. Returns one answer for
        each pair: None when done.
        """
        ...

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        """Keep these deliveries alive: this member still works on them, and no other member gets them.

        A delivery that got no `beat` for `idle_ms` is no longer renewed. Ordered consumption relies on this rule. Any
        thread may call this method.
        """
        ...

    def close(self) -> None:
        """Leave the group. Other members get the unsettled deliveries, after `idle_ms` at the latest. Idempotent."""
        ...


@runtime_checkable
class Broker(Protocol):
    """A message broker: it stores the messages of topics and delivers them to consumer groups."""

    name: str

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Publish each message to its topic. Returns one answer for each message: None when the broker has confirmed
        it.

        Raises:
            BrokerUnavailable: the broker gave no answer for any message.
        """
        ...

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> BrokerConsumer:
        """Join `group` on `topics`, which are created when absent. A new group starts at the beginning of each."""
        ...

    def create_topic(self, topic: str) -> None:
        """Create `topic` when it is absent."""
        ...

    def topics(self) -> dict[str, int]:
        """The known topics, and how many records each holds."""
        ...

    def close(self) -> None:
        """Release connections. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Backlog:
    """The records of a topic that a group has not settled. For display only.

    Args:
        waiting: the number of these records.
        oldest: the first record that no member has received, else the first unsettled record; None if there is none.
        silent_ms: the time since a member last polled; None if the group has no members.
    """

    waiting: int
    oldest: Message | None
    silent_ms: int | None


@runtime_checkable
class BacklogBroker(Protocol):
    """A broker that can report a group's unsettled records without joining the group."""

    def backlog(self, topic: str, group: str) -> Backlog:
        """The records of `topic` that `group` has not settled; all records if the group has never read it.

        Raises:
            BrokerError: the server refused or could not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Records of one partition, in order. The reader skips no record.

    Args:
        source: the permanent name of the partition for this group. A partition of a recreated topic has another name.
        expected: the position after the previous batch of this partition; None if it is not known.
        next: the position after the last record.
        deliveries: the records. They can be iterated once. Each record is decoded when the iteration reaches it.
    """

    source: str
    expected: int | None
    next: int
    deliveries: Iterable[Delivery]


@runtime_checkable
class PartitionedConsumer(BrokerConsumer, Protocol):
    """A member of a group to which whole partitions are assigned, each read in order from the first unsettled record.

    An assignment begins when the member gets a partition and ends when the member loses the partition. Each consumer
    numbers its own assignments.
    """

    def assignments(self) -> Mapping[tuple[str, int], int]:
        """The present partitions (topic, number) of this member, with their assignment numbers.

        Any thread may call it.
        """
        ...

    def assignment_of(self, delivery: Delivery) -> int:
        """The number of a delivery's assignment. After the assignment's end, settling the delivery does nothing."""
        ...

    def topic_id_of(self, delivery: Delivery) -> str:
        """The permanent id of the topic that a delivery was read from."""
        ...

    def rejoin(self) -> None:
        """Leave the group and join it again. All assignments end, and the member reads its new partitions from the
        first unsettled record. Any thread may call it."""
        ...


@runtime_checkable
class PartitionedBroker(Protocol):
    """A log broker whose consumers know their partitions (`PartitionedConsumer`)."""

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> PartitionedConsumer:
        """Join `group` on `topics`, as `Broker.consumer` does. Returns a consumer that knows its partitions."""
        ...

    def topic_id(self, topic: str) -> str:
        """The permanent id of a topic. A recreated topic has another id."""
        ...


PositionsOf = Callable[[Sequence[str]], Sequence[int | None]]


class LogReader(Protocol):
    """A group member that stores no positions. Its caller stores them, together with the records' results.

    Only one thread may use it.
    """

    def expected(self) -> Mapping[str, int]:
        """For each source (partition) of this member: the position of its next batch, if that is known."""
        ...

    def rewind(self, source: str, position: int | None) -> None:
        """Read the partition `source` again from `position`; None: from where this member began to read it."""
        ...

    def poll(self, limit: int, timeout_ms: int) -> LogBatch | None:
        """The next records of one partition; None if none came. Waits up to `timeout_ms` for them."""
        ...

    def done(self, part: LogBatch) -> None:
        """Report a stored batch to the broker, so that the broker's tools show the group's progress."""
        ...

    def beat(self) -> None:
        """Stay a member of the group between polls."""
        ...

    def close(self) -> None:
        """Leave the group. Idempotent."""
        ...


class ClaimSender(Protocol):
    """Sends a claim (due items taken together) with its number in one transaction. One thread at a time per shard."""

    def take_over(self, shard: int) -> int | None:
        """Fence the previous sender of the shard and end its open transaction. Returns the number of the last claim
        that was sent, or None if the broker knows no number.

        Raises:
            BrokerError: the broker does not answer. The last sent claim is not known.
        """
        ...

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Send all messages of a claim and the claim's `number` in one transaction, or nothing. Returns one answer for
        each message: all None if the claim was sent; else nothing was sent, and each message at fault has its failure.

        Raises:
            Fenced: another process has taken the shard over.
            BrokerInDoubt: the claim may have been sent; `take_over` tells whether it was.
            BrokerError: nothing was sent.
        """
        ...

    def stale(self, shard: int) -> bool:
        """Whether the last sent claim number is so old that the broker may soon delete it. If so, send it again."""
        ...

    def close(self) -> None:
        """Release connections. Idempotent."""
        ...


class Fenced(BrokerError):
    """Another process has taken this shard over. The former owner can no longer send for it."""


class BrokerInDoubt(BrokerUnavailable):
    """The messages may have been sent. Only the broker knows."""

    in_doubt = True


@runtime_checkable
class LogBroker(Protocol):
    """A broker whose topics are logs, read by position. `transactions`: whether the broker has transactions."""

    transactions: bool

    def log_reader(self, topic: str, group: str, positions: PositionsOf, *, idle_ms: int = 30_000) -> LogReader:
        """Read `topic` as a member of `group`. An absent topic is created.

        The reader calls `positions` with the sources that the group assigns to it. `positions` returns where to begin
        in each source; None: at the group's committed offset, or at the beginning if there is none.
        """
        ...

    def sender(self, namespace: str, shards: int) -> ClaimSender | None:
        """The sender of claims in transactions; None if the broker has no transactions."""
        ...


@runtime_checkable
class OriginalsBroker(Protocol):
    """A log broker that can read single records again. Messages that are stored without their payloads need this."""

    def originals(self, references: Sequence[Reference]) -> list[bytes | PublishFailure]:
        """The payload of each reference, or why it cannot be read. Repeat the call only for transient failures."""
        ...


@runtime_checkable
class InstantBroker(Protocol):
    """A broker that says whether `publish` can wait. `instant` True: it never waits, as the topics are in memory."""

    instant: bool


@runtime_checkable
class FieldsBroker(Protocol):
    """A broker that can publish the stored body of an item without decoding the body to a message."""

    def publish_fields(self, entries: Sequence[tuple[str, list[bytes]]]) -> list[PublishFailure | None]:
        """Do what `Broker.publish` does. Each entry has a topic and a message's stream encoding (fields and values)."""
        ...


@runtime_checkable
class OnceBroker(Protocol):
    """A broker that publishes a repeated message once, because it remembers the message's id for a while."""

    def publish_once(self, message: Message, message_id: str, window_ms: int) -> PublishFailure | None:
        """Publish one message, unless the topic got one with this id within `window_ms`. Returns its failure or None.

        After a failure `in_doubt` the caller may repeat the same call.
        """
        ...


@runtime_checkable
class TrimBroker(Protocol):
    """A broker whose topics can be trimmed to a length, because nothing else limits their length."""

    def trim(self, topic: str, keep: int) -> int:
        """Drop the oldest records beyond about `keep`, as far as every group has settled them. Returns their number.

        Raises:
            BrokerError: the broker could not answer. Repeating the call is harmless.
        """
        ...


@runtime_checkable
class NamesBroker(Protocol):
    """A broker that knows, without I/O, which names its topics cannot have."""

    def topic_problem(self, topic: str) -> str | None:
        """Why `topic` cannot be the name of a topic; None if it can."""
        ...


@runtime_checkable
class GroupTopicsBroker(Protocol):
    """A broker that creates the topics of a group with settings for their purpose."""

    def create_group_topics(self, topics: Mapping[str, str]) -> list[str]:
        """Create the absent topics. `topics` maps "retry", "redelivery", "dead" to names. Returns the created ones."""
        ...


@runtime_checkable
class ReadersBroker(Protocol):
    """A broker that knows which topics a group reads. A message's headers cannot prove this: they may be forged."""

    def reads(self, group: str, topic: str) -> bool:
        """Whether `group` reads `topic`; False if there is no such topic.

        Raises:
            BrokerError: the broker could not answer.
        """
        ...


def create_topics(broker: Broker, topics: Mapping[str, str]) -> None:
    """Create a group's absent topics. `topics` maps each purpose ("retry", "redelivery", "dead") to a name.

    Raises:
        ConfigError: the broker cannot have a topic with one of these names.
        BrokerError: the broker refused or does not answer.
    """
    if isinstance(broker, GroupTopicsBroker):
        broker.create_group_topics(topics)
        return
    for topic in topics.values():
        broker.create_topic(topic)


def joining(topics: Sequence[str], group: str, idle_ms: int) -> tuple[str, ...]:
    """Check the arguments of `Broker.consumer`. Returns the topics in the order given, without repetitions.

    Raises:
        ConfigError: lists all problems of the arguments.
    """
    problems = []
    names = () if isinstance(topics, str | bytes) else tuple(dict.fromkeys(topics))
    if not names or not all(isinstance(name, str) and name for name in names):
        problems.append(f"expected topics to be a sequence of one or more non-empty names, got: {topics!r}")
    if not isinstance(group, str) or not group:
        problems.append(f"expected group to be a non-empty name, got: {group!r}")
    if not isinstance(idle_ms, int) or isinstance(idle_ms, bool) or idle_ms < 1:
        problems.append(f"expected idle_ms to be an integer of 1 or more, got: {idle_ms!r}")
    if problems:
        raise ConfigError(problems)
    return names
