"""The broker seam: what the retry service needs of a message broker, and nothing more.

Implementations: `memory` (one process, tests and examples), `redis-streams` (the embedded default); each passes the
public suite in `retry_topic.brokers.conformance`. All methods are blocking.

Threads: a `Broker` may be used from any. A `BrokerConsumer` is used by two at the same time: one calls `poll`, one
calls `ack` and `forward` (both may be the same); `beat` comes from any thread, also while the others are inside.
`close` comes last, when nobody polls or settles any more.

Delivery is at least once: what is neither acknowledged nor kept alive by `beat` for `idle_ms` is handed out again
with `deliveries` raised by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from retry_topic.message import Message, Reference
from wheel_sched.errors import BrokerError, BrokerUnavailable, ConfigError


@dataclass(slots=True, unsafe_hash=True)
class Delivery:
    """A message in the hands of a consumer.

    Args:
        message: what was read, with its `source`.
        handle: the broker's own acknowledgement handle, opaque to everybody else.
        deliveries: how often the broker handed it out, 1 the first time. Above 1 a consumer died or hung.
    """

    message: Message
    handle: Any
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class PublishFailure:
    """Why one message of a batch was not published.

    Args:
        reason: plain words, bounded to 500 characters.
        transient: True when the same message may go through later (broker away, throttled); False when it never
            will (unknown topic, record too large).
        in_doubt: True when the broker may have it all the same (the reply was lost).
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
        """Settle deliveries: they will not be handed out again. Repeating it is harmless."""
        ...

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        """Publish each message and settle its delivery, atomically where the broker can.

        Where it cannot, it publishes first and settles after: a crash in between makes a duplicate, never a loss.
        A delivery whose message failed stays unsettled. Answers in the order of `pairs`, None = done.
        """
        ...

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        """Say that these are still being worked on, so that no other member is given them. Any thread."""
        ...

    def close(self) -> None:
        """Leave the group; unsettled deliveries are handed out to others after `idle_ms`. Idempotent."""
        ...


@runtime_checkable
class Broker(Protocol):
    """A place to publish to and to consume from."""

    name: str

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Publish each message to its topic; answers in order, None = confirmed. Never raises for one message.

        Raises:
            BrokerUnavailable: nothing is known of any of them.
        """
        ...

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> BrokerConsumer:
        """Join `group` on `topics` (created when absent). The group starts at the beginning of each topic."""
        ...

    def create_topic(self, topic: str) -> None:
        """Create `topic` when it is absent."""
        ...

    def topics(self) -> dict[str, int]:
        """Known topics and how many records each holds."""
        ...

    def close(self) -> None:
        """Release connections. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a group has before it in a topic, for people.

    Args:
        waiting: records that it has not settled.
        oldest: the first of those that no member was given, else the first that is unsettled; None: nothing waits.
        silent_ms: how long no member has asked for records; None: the group has no members.
    """

    waiting: int
    oldest: Message | None
    silent_ms: int | None


@runtime_checkable
class BacklogBroker(Protocol):
    """A broker that can say what waits in a topic without joining its group."""

    def backlog(self, topic: str, group: str) -> Backlog:
        """What `group` has before it in `topic`; all there is, when the group has never read it.

        Raises:
            BrokerError: the server refused or could not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Slice:
    """Records of one partition, in order, without a gap of its own.

    Args:
        source: a name for ever of the partition for this group; a topic made anew has another.
        expected: the position its first record was to have; None: nothing is known of an earlier one.
        next: the position behind its last record.
        deliveries: the records, to be read once: a reader makes each when it is asked for.
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
    """What a log broker may offer besides: consumers that know their partitions (`PartitionedConsumer`)."""

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> PartitionedConsumer:
        """See `Broker.consumer`."""
        ...

    def topic_id(self, topic: str) -> str:
        """A name for ever of a topic: one made anew has another."""
        ...


PositionsOf = Callable[[Sequence[str]], Sequence[int | None]]


class LogReader(Protocol):
    """A member of a group whose positions are kept by the reader, beside what it made of the records. One thread."""

    def expected(self) -> Mapping[str, int]:
        """For each source of this member the position that its next slice goes on from, where the keeper knew one."""
        ...

    def rewind(self, source: str, position: int | None) -> None:
        """Read a source from there again; None: from where this member began with it."""
        ...

    def poll(self, limit: int, timeout_ms: int) -> Slice | None:
        """Records of one partition; waits up to `timeout_ms`."""
        ...

    def done(self, part: Slice) -> None:
        """The position of the slice is kept: tell the broker, for those who look how far the group is."""
        ...

    def beat(self) -> None:
        """Stay a member while nothing is polled."""
        ...

    def close(self) -> None:
        """Leave the group. Idempotent."""
        ...


class ClaimSender(Protocol):
    """Sends claims of a store's shards, each in a transaction with its number. One thread per shard at a time."""

    def take_over(self, shard: int) -> int | None:
        """Fence whoever sent for the shard before, and end what it had open; the number of the last claim that went
        out, None when none is known.

        Raises:
            BrokerError: the broker does not answer; nothing is known.
        """
        ...

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Send all of `messages` and the number, or nothing: then a failure for each message to blame.

        Raises:
            Fenced: another has taken the shard over.
            InDoubt: it may have gone out; `take_over` tells.
            BrokerError: nothing was sent.
        """
        ...

    def stale(self, shard: int) -> bool:
        """Whether the number is to be sent again, or the broker would forget it."""
        ...

    def close(self) -> None:
        """Release connections. Idempotent."""
        ...


class Fenced(BrokerError):
    """Another process sends for this shard now: nothing more goes out here."""


class InDoubt(BrokerUnavailable):
    """What was sent may have gone out: only the broker knows."""

    in_doubt = True


@runtime_checkable
class LogBroker(Protocol):
    """What a broker may offer besides: topics as logs, read by position; `transactions` says whether it has any."""

    transactions: bool

    def log_reader(self, topic: str, group: str, positions: PositionsOf, *, idle_ms: int = 30_000) -> LogReader:
        """Read `topic` as a member of `group`; created when absent.

        `positions` is asked for each source that comes to this member; None: from where the group has committed, else
        from its beginning.
        """
        ...

    def sender(self, namespace: str, shards: int) -> ClaimSender | None:
        """What sends claims in transactions; None where there are none."""
        ...


@runtime_checkable
class OriginalsBroker(Protocol):
    """What a log broker may offer besides: reading single records again, for messages by reference."""

    def originals(self, references: Sequence[Reference]) -> list[bytes | PublishFailure]:
        """The payload each stands for, or why not: a failure that is not transient when there is none any more."""
        ...


@runtime_checkable
class InstantBroker(Protocol):
    """What a broker may offer besides: `instant` says that `publish` waits for nothing, as its topics are in memory."""

    instant: bool


@runtime_checkable
class FieldsBroker(Protocol):
    """What a broker may offer besides: publishing what lies in the delay store without taking it apart."""

    def publish_fields(self, entries: Sequence[tuple[str, list[bytes]]]) -> list[PublishFailure | None]:
        """As `Broker.publish`, for pairs of a topic and the fields of `retry_topic.message.stream_encoding`."""
        ...


@runtime_checkable
class OnceBroker(Protocol):
    """What a broker may offer besides: a publish that can be repeated, because it remembers the id for a while."""

    def publish_once(self, message: Message, message_id: str, window_ms: int) -> PublishFailure | None:
        """As `Broker.publish` of one message; nothing when its topic got one under this id within `window_ms`.

        A failure `in_doubt` may be repeated as it is.
        """
        ...


@runtime_checkable
class TrimBroker(Protocol):
    """What a broker may offer besides: topics that nothing else bounds are trimmed to a length."""

    def trim(self, topic: str, keep: int) -> int:
        """Drop the oldest records beyond about `keep`, but none that a group has yet to settle; how many were dropped.

        Raises:
            BrokerError: the broker could not answer; repeating it is harmless.
        """
        ...


@runtime_checkable
class NamesBroker(Protocol):
    """What a broker may offer besides: it knows without asking anybody which names no topic of it can have."""

    def topic_problem(self, topic: str) -> str | None:
        """Why `topic` cannot be the name of a topic, if so."""
        ...


@runtime_checkable
class GroupTopicsBroker(Protocol):
    """What a broker may offer besides: topics of a group that are created as what they are for wants it."""

    def create_group_topics(self, topics: Mapping[str, str]) -> list[str]:
        """Create those of "retry", "redelivery" and "dead" that are absent; which were created."""
        ...


@runtime_checkable
class ReadersBroker(Protocol):
    """What a broker may offer besides: it knows which topics a group reads, whatever records say of it."""

    def reads(self, group: str, topic: str) -> bool:
        """Whether `group` reads `topic`; False also for what is no topic.

        Raises:
            BrokerError: the broker could not answer.
        """
        ...


def create_topics(broker: Broker, topics: Mapping[str, str]) -> None:
    """Create a group's topics where they are absent; by what they are for ("retry", "redelivery", "dead").

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
    """The distinct topics of a consumer to be, in the order given; every implementation checks its arguments here.

    Raises:
        ConfigError: with all that is wrong with them.
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
