"""MemoryBroker: a broker inside one process. A topic is a list; a group is a position and a table of leases.

Invariant: each record before the group's position either has a lease (a member works on it) or is settled. A group
keeps its leases in the order of their last renewal. So the first lease shows whether a record must be handed out again,
and a poll does not scan all records in flight.

Cost: about 0.3 us per published message (one append; a batch takes the lock once). A poll costs time in proportion to
its deliveries and to the expired leases.
Threads: any thread may call any method. One lock guards the broker. Of the user's functions, the broker calls only the
clocks while it holds the lock. Time: `monotonic_ms` decides when an unsettled delivery is handed out again, and may be
a virtual clock. But `poll` waits in real time, because a virtual clock would not wake it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import count, takewhile

from retry_topic.brokers.protocol import Backlog, Delivery, PublishFailure, joining
from retry_topic.message import Message, Source
from retry_topic.message.encoding import from_fields
from wheel_sched.errors import BrokerUnavailable, ConfigError


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Lease:
    member: int
    since_ms: int
    deliveries: int


@dataclass(slots=True)
class _Group:
    position: int = 0
    leases: dict[int, _Lease] = field(default_factory=dict)  # by offset; the lease whose renewal is oldest comes first
    asked: dict[int, int] = field(default_factory=dict)  # when each member last polled

    def lease(self, offset: int, member: int, now_ms: int) -> int:
        """Give `offset` to `member`. Returns how often the record was handed out, this time included."""
        old = self.leases.pop(offset, None)
        deliveries = old.deliveries + 1 if old else 1
        self.leases[offset] = _Lease(member, now_ms, deliveries)
        return deliveries

    def expired(self, now_ms: int, idle_ms: int, limit: int) -> list[int]:
        """The lowest offsets whose lease was not renewed for `idle_ms`: at most `limit`, in ascending order."""
        if limit <= 0:
            return []
        ended = takewhile(lambda offset: now_ms - self.leases[offset].since_ms >= idle_ms, self.leases)
        return nsmallest(limit, ended)

    def first_unsettled(self) -> int:
        return min(self.leases, default=self.position)


@dataclass(slots=True)
class _Topic:
    base: int = 0  # offset of records[0]
    records: list[tuple[Message | list[bytes], int]] = field(default_factory=list)  # each record and its time (wall ms)
    groups: dict[str, _Group] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.base + len(self.records)

    def delivered(self, name: str, offset: int) -> Message:
        message, at_ms = self.records[offset - self.base]
        if isinstance(message, list):
            return from_fields(name, message, Source(name, 0, str(offset), at_ms))
        return Message(name, message.value, message.key, message.headers, Source(name, 0, str(offset), at_ms))

    def trim(self, keep: int) -> int:
        """Drop the oldest records beyond `keep`, as far as every group has settled them. Returns their number."""
        settled = min((group.first_unsettled() for group in self.groups.values()), default=self.end) - self.base
        count = max(0, min(len(self.records) - keep, settled))
        del self.records[:count]
        self.base += count
        return count


class MemoryBroker:
    """Topics in the memory of this process.

    Args:
        create_topics: publishing to an absent topic creates it instead of failing. Defaults to False.
        maxlen: how many records of a topic stay after every group has settled them. Unsettled records always stay, and
            so do all records of a topic that no group reads. Defaults to None: all stay.
        monotonic_ms: the clock that decides when a delivery is handed out again. Defaults to the monotonic clock.
        wall_ms: the clock of `Source.timestamp_ms`. Defaults to the time of day.
    """

    name = "memory"
    instant = True  # publishing never waits: the dispatcher needs no thread for it

    def __init__(
        self,
        *,
        create_topics: bool = False,
        maxlen: int | None = None,
        monotonic_ms: Callable[[], int] = _monotonic_ms,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        if maxlen is not None and maxlen < 0:
            raise ConfigError(f"expected maxlen to be None or 0 and more, got: {maxlen!r}")
        self.create_topics = create_topics
        self._maxlen = maxlen
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        self._topics: dict[str, _Topic] = {}
        self._sent: dict[tuple[str, str], int] = {}  # by topic and id: when the id's window ends
        self._members = count(1)
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Append each message to its topic. Returns one answer for each message: None when done, else its failure.

        Raises:
            BrokerUnavailable: the broker was closed. Nothing was published.
        """
        return self._publish([(message.topic, message) for message in messages])

    def publish_fields(self, entries: Sequence[tuple[str, list[bytes]]]) -> list[PublishFailure | None]:
        """Publish pairs of a topic and a list of fields and values, which a poll decodes. Implements `FieldsBroker`."""
        return self._publish(entries)

    def publish_once(self, message: Message, message_id: str, window_ms: int) -> PublishFailure | None:
        """Publish one message, unless the topic got one with this id within `window_ms`. Returns its failure or None.

        Implements `OnceBroker.publish_once`.
        """
        at_ms, now_ms = self._wall_ms(), self._monotonic_ms()
        sent, place = self._sent, (message.topic, message_id)
        with self._changed:
            self._check_open()
            while sent and (oldest := next(iter(sent))) and sent[oldest] <= now_ms:
                del sent[oldest]
            if sent.get(place, now_ms) > now_ms:
                return None
            (answer,) = self._append([(message.topic, message)], at_ms)
            if answer is None:
                sent.pop(place, None)
                sent[place] = now_ms + window_ms
            self._changed.notify_all()
        return answer

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> MemoryConsumer:
        """Join `group` on `topics`. Absent topics are created. A new group starts at the beginning of each topic.

        Raises:
            ConfigError: an argument is wrong.
            BrokerUnavailable: the broker was closed.
        """
        names = joining(topics, group, idle_ms)
        with self._changed:
            self._check_open()
            for name in names:
                topic = self._topics.setdefault(name, _Topic())
                topic.groups.setdefault(group, _Group(topic.base))
            return MemoryConsumer(self, names, group, idle_ms, next(self._members))

    def backlog(self, topic: str, group: str) -> Backlog:
        """The records of `topic` that `group` has not settled. Implements `BacklogBroker.backlog`."""
        with self._changed:
            held = self._topics.get(topic, _Topic())
            of = held.groups.get(group, _Group(held.base))
            fresh = held.end - of.position
            first = of.position if fresh else min(of.leases, default=None)
            silent = min((self._monotonic_ms() - at_ms for at_ms in of.asked.values()), default=None)
            oldest = None if first is None else held.delivered(topic, first)
            return Backlog(fresh + len(of.leases), oldest, silent)

    def topic_problem(self, topic: str) -> str | None:
        """Why a topic cannot have this name; None if it can."""
        return None if topic else f"expected topic to be a non-empty name, got: {topic!r}"

    def create_topic(self, topic: str) -> None:
        """Create `topic` when it is absent. Raises ConfigError if a topic cannot have this name."""
        if problem := self.topic_problem(topic):
            raise ConfigError(problem)
        with self._changed:
            self._topics.setdefault(topic, _Topic())

    def trim(self, topic: str, keep: int) -> int:
        """Drop the oldest records beyond `keep`, as far as every group has settled them. Returns their number."""
        with self._changed:
            held = self._topics.get(topic)
            return 0 if held is None else held.trim(keep)

    def topics(self) -> dict[str, int]:
        """The topics of this broker, and how many records each holds."""
        with self._changed:
            return {name: len(topic.records) for name, topic in self._topics.items()}

    def reads(self, group: str, topic: str) -> bool:
        """Whether `group` has ever joined on `topic`. Implements `ReadersBroker.reads`."""
        with self._changed:
            held = self._topics.get(topic)
            return held is not None and group in held.groups

    def records(self, topic: str) -> list[Message]:
        """The records of `topic`, oldest first, without consuming them. For tests and inspection."""
        with self._changed:
            held = self._topics.get(topic, _Topic())
            return [held.delivered(topic, offset) for offset in range(held.base, held.end)]

    def close(self) -> None:
        """Refuse to publish, join and poll, and wake waiting consumers. The other methods still work. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __repr__(self) -> str:
        with self._changed:
            records = sum(len(topic.records) for topic in self._topics.values())
            return f"<MemoryBroker topics={len(self._topics)} records={records}{' closed' if self._closed else ''}>"

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerUnavailable("the memory broker was closed: nothing was done")

    def _publish(self, entries: Sequence[tuple[str, Message | list[bytes]]]) -> list[PublishFailure | None]:
        at_ms = self._wall_ms()
        with self._changed:
            self._check_open()
            answers = self._append(entries, at_ms)
            self._changed.notify_all()
        return answers

    def _append(self, entries: Sequence[tuple[str, Message | list[bytes]]], at_ms: int) -> list[PublishFailure | None]:
        answers: list[PublishFailure | None] = [None] * len(entries)
        topics = self._topics
        for index, (name, entry) in enumerate(entries):
            topic = topics.get(name)
            if topic is None:
                if not self.create_topics or not name:
                    answers[index] = PublishFailure(f"unknown topic {name!r}"[:500], transient=False)
                    continue
                topic = topics[name] = _Topic()
            topic.records.append((entry, at_ms))
        return answers


class MemoryConsumer:
    """One member of a group; made by `MemoryBroker.consumer`."""

    def __init__(self, broker: MemoryBroker, topics: tuple[str, ...], group: str, idle_ms: int, member: int) -> None:
        self._broker = broker
        self._topics = topics
        self._group = group
        self._idle_ms = idle_ms
        self._member = member
        self._turn = 0  # index of the topic to read first: rotates, so that a busy topic does not starve the others
        self._closed = False

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        """Up to `limit` deliveries; records whose leases have expired come first.

        Waits up to `timeout_ms` (real time) for the first delivery.

        Raises:
            BrokerUnavailable: this consumer or the broker was closed.
        """
        until = time.monotonic() + timeout_ms / 1000
        with self._broker._changed:
            while True:
                self._broker._check_open()
                if self._closed:
                    raise BrokerUnavailable("this consumer was closed: nothing was read")
                now_ms = self._broker._monotonic_ms()
                for name in self._topics:
                    self._broker._topics[name].groups[self._group].asked[self._member] = now_ms
                taken = self._take(limit, now_ms)
                left_seconds = until - time.monotonic()
                if taken or left_seconds <= 0 or limit < 1:
                    return taken
                self._broker._changed.wait(min(left_seconds, self._orphan_in_seconds(now_ms)))

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries. Repeating the call is harmless."""
        with self._broker._changed:
            for delivery in deliveries:
                self._settle(delivery)

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        """Publish each message and settle its delivery in one step. Publishes nothing for a settled delivery."""
        at_ms = self._broker._wall_ms()
        answers: list[PublishFailure | None] = []
        with self._broker._changed:
            self._broker._check_open()
            for delivery, message in pairs:
                failure = None
                if self._lease_of(delivery) is not None:
                    failure = self._broker._append([(message.topic, message)], at_ms)[0]
                    if failure is None:
                        self._settle(delivery)
                answers.append(failure)
            self._broker._changed.notify_all()
        return answers

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        """Renew the leases that this member still holds and that have not ended. Other leases are not changed."""
        now_ms = self._broker._monotonic_ms()
        with self._broker._changed:
            for delivery in deliveries:
                lease = self._lease_of(delivery)
                held = lease is not None and lease.member == self._member
                if lease is not None and held and now_ms - lease.since_ms < self._idle_ms:
                    topic, offset = delivery.handle
                    leases = self._broker._topics[topic].groups[self._group].leases
                    del leases[offset]
                    lease.since_ms = now_ms
                    leases[offset] = lease

    def close(self) -> None:
        """Leave the group. Other members get the unsettled deliveries after `idle_ms`. Idempotent."""
        with self._broker._changed:
            self._closed = True
            for name in self._topics:
                self._broker._topics[name].groups[self._group].asked.pop(self._member, None)
            self._broker._changed.notify_all()

    def __repr__(self) -> str:
        return f"<MemoryConsumer group={self._group!r} topics={list(self._topics)} member={self._member}>"

    def _take(self, limit: int, now_ms: int) -> list[Delivery]:
        names = self._topics[self._turn :] + self._topics[: self._turn]
        self._turn = (self._turn + 1) % len(self._topics)
        states = [(name, topic := self._broker._topics[name], topic.groups[self._group]) for name in names]
        taken: list[Delivery] = []
        for name, topic, group in states:
            for offset in group.expired(now_ms, self._idle_ms, limit - len(taken)):
                deliveries = group.lease(offset, self._member, now_ms)
                taken.append(Delivery(topic.delivered(name, offset), (name, offset), deliveries))
        for name, topic, group in states:
            last = min(topic.end, group.position + limit - len(taken))
            for offset in range(group.position, last):
                group.lease(offset, self._member, now_ms)
                taken.append(Delivery(topic.delivered(name, offset), (name, offset)))
            group.position = max(group.position, last)
        return taken

    def _orphan_in_seconds(self, now_ms: int) -> float:
        """The seconds until the next lease of the group can expire, at least a millisecond."""
        groups = (self._broker._topics[name].groups[self._group] for name in self._topics)
        oldest = (next(iter(group.leases.values())).since_ms for group in groups if group.leases)
        return max(1, min(oldest, default=now_ms) + self._idle_ms - now_ms) / 1000

    def _lease_of(self, delivery: Delivery) -> _Lease | None:
        topic, offset = delivery.handle
        return self._broker._topics[topic].groups[self._group].leases.get(offset)

    def _settle(self, delivery: Delivery) -> None:
        topic, offset = delivery.handle
        held = self._broker._topics[topic]
        settled = held.groups[self._group].leases.pop(offset, None)
        if settled is not None and self._broker._maxlen is not None:
            held.trim(self._broker._maxlen)
