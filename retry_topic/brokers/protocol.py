"""The broker protocol: what consumers and the retry service need from a message broker, and nothing more.

Implementations: `memory` (one process, for tests and examples), `redis_streams` (the embedded default) and `kafka`.
Each passes the public suite in `retry_topic.brokers.conformance`. All methods block.

Threads: any thread may use a `Broker`. Two threads at a time use a `BrokerConsumer`: one calls `poll`, one calls `ack`
and `forward` (both may be the same thread). Any thread may call `beat`, also while the others are inside. `close` comes
last, when nobody polls or settles any more.

Delivery is at least once: a delivery that is neither settled nor kept alive by `beat` for `idle_ms` is handed out
again, with `deliveries` raised by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from retry_topic.message import Message, Reference
from wheel_sched.errors import BrokerError, BrokerUnavailable, ConfigError


@dataclass(slots=True, unsafe_hash=True)
class Delivery:
    """A message that a consumer was given and has not settled.

    Args:
        message: the message, with its `source`.
        handle: what the broker needs to settle it; opaque to everybody else.
        deliveries: how often the broker has handed it out, 1 the first time. Above 1, a consumer died or hung.
    """

    message: Message
    handle: Any
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class PublishFailure:
    """Why one message of a batch was not published.

    Args:
        reason: plain words, at most 500 characters.
        transient: True: the same message may succeed later (the broker is away or throttles). False: it never will
            (the topic is unknown, the record is too large).
        in_doubt: True: the broker may have the message nevertheless (the reply was lost).
    """

    reason: str
    transient: bool = True
    in_doubt: bool = False


@runtime_checkable
class BrokerConsumer(Protocol):
    """One member of a consumer group."""

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        """Up to `limit` deliveries; waits up to `timeout_ms` for the first. Orphans of dead members come first."""
        ...

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries: they are not handed out again. Repeating it is harmless."""
        ...

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        """Publish each message and settle its delivery, atomically where the broker can.

        Where it cannot, it publishes first and settles after: a crash in between makes a duplicate and never a loss.
        A delivery whose message failed stays unsettled. Answers in the order of `pairs`; None: done.
        """
        ...

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        """Say that these deliveries are still being worked on, so that no other member gets them. Any thread."""
        ...

    def close(self) -> None:
        """Leave the group. Other members get the unsettled deliveries after `idle_ms`. Idempotent."""
        ...


@runtime_checkable
class Broker(Protocol):
    """A place to publish to and to consume from."""

    name: str

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Publish each message to its topic. Answers in order; None: confirmed. Never raises for a single message.

        Raises:
            BrokerUnavailable: the broker answered for none of them.
        """
        ...

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> BrokerConsumer:
        """Join `group` on `topics`, which are created when absent. A new group starts at their beginning."""
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
    """The records of a topic that a group has not settled, for people.

    Args:
        waiting: the number of these records.
        oldest: the first one that no member was given, else the first unsettled one; None: there is none.
        silent_ms: for how long no member has polled; None: the group has no members.
    """

    waiting: int
    oldest: Message | None
    silent_ms: int | None


@runtime_checkable
class BacklogBroker(Protocol):
    """A broker that can say what waits in a topic for a group, without joining it."""

    def backlog(self, topic: str, group: str) -> Backlog:
        """The records of `topic` that `group` has not settled; all records if the group has never read it.

        Raises:
            BrokerError: the server refused or could not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Records of one partition, in order and without gaps of its own.

    Args:
        source: the permanent name of the partition for this group; a recreated topic has other names.
        expected: the position that the first record should have; None: no earlier position is known.
        next: the position after the last record.
        deliveries: the records. They can be iterated once, and each is made when it is needed.
    """

    source: str
    expected: int | None
    next: int
    deliveries: Iterable[Delivery]


@runtime_checkable
class PartitionedConsumer(BrokerConsumer, Protocol):
    """A member of a group to which whole partitions are assigned, each read in order from the first unsettled record.

    An assignment lasts from when a partition comes to this member until it goes. Its number never repeats.
    """

    def assignments(self) -> Mapping[tuple[str, int], int]:
        """The partitions (topic, number) of this member now, and the numbers of their assignments. Any thread."""
        ...

    def assignment_of(self, delivery: Delivery) -> int:
        """The assignment that a delivery belongs to. Settling the delivery does nothing once that is over."""
        ...

    def topic_id_of(self, delivery: Delivery) -> str:
        """The permanent id of the topic that a delivery was read from."""
        ...

    def rejoin(self) -> None:
        """Leave the group and join it again: all assignments are over, and partitions are read again from the first
        unsettled record. Any thread."""
        ...


@runtime_checkable
class PartitionedBroker(Protocol):
    """A log broker whose consumers know their partitions (`PartitionedConsumer`)."""

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> PartitionedConsumer:
        """See `Broker.consumer`."""
        ...

    def topic_id(self, topic: str) -> str:
        """The permanent id of a topic; a recreated topic has another one."""
        ...


PositionsOf = Callable[[Sequence[str]], Sequence[int | None]]


class LogReader(Protocol):
    """A member of a group whose positions are kept by its caller, beside the results of the records. One thread."""

    def expected(self) -> Mapping[str, int]:
        """For each source of this member, the position from which its next batch goes on, if one is known."""
        ...

    def rewind(self, source: str, position: int | None) -> None:
        """Read a source again from `position`; None: from where this member began with it."""
        ...

    def poll(self, limit: int, timeout_ms: int) -> LogBatch | None:
        """The next records of one partition; waits up to `timeout_ms`."""
        ...

    def done(self, part: LogBatch) -> None:
        """The batch is stored: tell the broker, for people who look how far the group is."""
        ...

    def beat(self) -> None:
        """Stay a member of the group while nobody polls."""
        ...

    def close(self) -> None:
        """Leave the group. Idempotent."""
        ...


class ClaimSender(Protocol):
    """Sends claims of a store's shards, each in a transaction with its number. One thread per shard at a time."""

    def take_over(self, shard: int) -> int | None:
        """Fence the sender that had the shard before and end its open transaction. Answers the number of the last claim
        that went out, None when none is known.

        Raises:
            BrokerError: the broker does not answer; nothing is known.
        """
        ...

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Send all of `messages` and the number, or nothing; then answers a failure for each message to blame.

        Raises:
            Fenced: another has taken the shard over.
            BrokerInDoubt: it may have gone out; `take_over` tells.
            BrokerError: nothing was sent.
        """
        ...

    def stale(self, shard: int) -> bool:
        """Whether the number must be sent again, because the broker would forget it."""
        ...

    def close(self) -> None:
        """Release connections. Idempotent."""
        ...


class Fenced(BrokerError):
    """Another process sends for this shard now. This one sends nothing any more."""


class BrokerInDoubt(BrokerUnavailable):
    """The messages may have gone out; only the broker knows."""

    in_doubt = True


@runtime_checkable
class LogBroker(Protocol):
    """A broker whose topics are logs, read by position. `transactions` says whether it has transactions."""

    transactions: bool

    def log_reader(self, topic: str, group: str, positions: PositionsOf, *, idle_ms: int = 30_000) -> LogReader:
        """Read `topic` as a member of `group`; created when absent.

        `positions` is called for the sources that come to this member. It answers the position to begin at; None: the
        offset that the group has committed, else the beginning.
        """
        ...

    def sender(self, namespace: str, shards: int) -> ClaimSender | None:
        """The sender of claims in transactions; None: the broker has no transactions."""
        ...


@runtime_checkable
class OriginalsBroker(Protocol):
    """A log broker that can read single records again, for messages by reference."""

    def originals(self, references: Sequence[Reference]) -> list[bytes | PublishFailure]:
        """The payload of each reference, or a failure; one that is not transient means that the record is gone."""
        ...


@runtime_checkable
class InstantBroker(Protocol):
    """What a broker may offer besides: `instant` says that `publish` waits for nothing, as its topics are in memory."""

    instant: bool


@runtime_checkable
class FieldsBroker(Protocol):
    """A broker that can publish a body of the delay store without decoding it to a message."""

    def publish_fields(self, entries: Sequence[tuple[str, list[bytes]]]) -> list[PublishFailure | None]:
        """As `Broker.publish`, for pairs of a topic and the fields of `retry_topic.message.stream_encoding`."""
        ...


@runtime_checkable
class OnceBroker(Protocol):
    """A broker with a publish that may be repeated, because the broker remembers the id for a while."""

    def publish_once(self, message: Message, message_id: str, window_ms: int) -> PublishFailure | None:
        """As `Broker.publish` of one message; does nothing if the topic got a message with this id within `window_ms`.

        A failure `in_doubt` may be repeated as it is.
        """
        ...


@runtime_checkable
class TrimBroker(Protocol):
    """A broker whose topics can be trimmed to a length, because nothing else bounds them."""

    def trim(self, topic: str, keep: int) -> int:
        """Drop the oldest records beyond about `keep`, but none that a group has not settled. Answers their number.

        Raises:
            BrokerError: the broker could not answer; repeating it is harmless.
        """
        ...


@runtime_checkable
class NamesBroker(Protocol):
    """A broker that knows, without I/O, which names its topics cannot have."""

    def topic_problem(self, topic: str) -> str | None:
        """Why `topic` cannot be the name of a topic; None: it can."""
        ...


@runtime_checkable
class GroupTopicsBroker(Protocol):
    """A broker that creates the topics of a group with settings for their purpose."""

    def create_group_topics(self, topics: Mapping[str, str]) -> list[str]:
        """Create those of the "retry", "redelivery" and "dead" topics that are absent. Answers the created ones."""
        ...


@runtime_checkable
class ReadersBroker(Protocol):
    """A broker that knows which topics a group reads, whatever records say."""

    def reads(self, group: str, topic: str) -> bool:
        """Whether `group` reads `topic`; False if there is no such topic.

        Raises:
            BrokerError: the broker could not answer.
        """
        ...


def create_topics(broker: Broker, topics: Mapping[str, str]) -> None:
    """Create those of a group's topics that are absent; `topics` has them by purpose ("retry", "redelivery", "dead").

    Raises:
        ConfigError: a name is impossible.
        BrokerError: the broker refused or does not answer.
    """
    if isinstance(broker, GroupTopicsBroker):
        broker.create_group_topics(topics)
        return
    for topic in topics.values():
        broker.create_topic(topic)


def joining(topics: Sequence[str], group: str, idle_ms: int) -> tuple[str, ...]:
    """The distinct topics of a new consumer, in the order given. Every broker checks its arguments here.

    Raises:
        ConfigError: with all problems of the arguments.
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
