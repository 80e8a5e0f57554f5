"""Clients of the log broker of a simulated world, as one process has them: broker, members of groups, sender of claims.

A client keeps what a Kafka client keeps: its partitions, what it has handed out, and the epoch of its producers. Each
request carries what was known when it was sent, because it may arrive late.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from retry_topic.brokers.protocol import (
    BrokerInDoubt,
    Delivery,
    Fenced,
    LogBatch,
    PositionsOf,
    PublishFailure,
    joining,
)
from retry_topic.message import Message
from retry_topic.message.headers import return_to_origin
from retry_topic.message.topic_names import source_of
from retry_topic.simulation.log_server import Expelled, LogServer, Place
from wheel_sched.errors import BrokerUnavailable
from wheel_sched.simulation.world import MS, ConnectionRefused, Lost, World

T = TypeVar("T")


def _once(perform: Callable[[], T]) -> Callable[[], T]:
    """A request that its server performs once, however often it arrives: batches of a producer have numbers."""
    answers: list[T] = []

    def perform_once() -> T:
        if not answers:
            answers.append(perform())
        return answers[0]

    return perform_once


class _Client:
    def __init__(self, world: World, server: LogServer) -> None:
        self._world, self._server = world, server

    def _call(self, what: str, perform: Callable[[], T]) -> T:
        try:
            return self._world.call(self._server, what, perform)
        except ConnectionRefused:
            raise BrokerUnavailable("the broker is away: nothing was done") from None
        except Lost:
            raise BrokerInDoubt("no reply", in_doubt=True) from None


class RemoteLogBroker(_Client):
    """A client of a `LogServer`, as one process has it; see `LogBroker` and `PartitionedBroker`."""

    name = "simulated log"
    transactions = True

    def __init__(self, world: World, server: LogServer) -> None:
        super().__init__(world, server)
        self._members = 0

    def _member(self) -> str:
        self._members += 1
        return f"{self._world.scheduler.process.name}-{self._members}-{self._server._number()}"

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """See `Broker`."""
        messages = list(messages)
        try:
            return self._call("publish", _once(lambda: self._server.append(messages)))
        except BrokerInDoubt:
            return [PublishFailure("no reply", in_doubt=True) for _ in messages]

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> RemoteLogConsumer:
        """See `PartitionedBroker`."""
        return RemoteLogConsumer(
            self._world, self._server, joining(topics, group, idle_ms), group, idle_ms, self._member
        )

    def log_reader(self, topic: str, group: str, positions: PositionsOf, *, idle_ms: int = 30_000) -> RemoteLogReader:
        """See `LogBroker`."""
        return RemoteLogReader(self._world, self._server, topic, group, positions, idle_ms, self._member)

    def sender(self, namespace: str, shards: int) -> RemoteSender:
        """See `LogBroker`."""
        return RemoteSender(self._world, self._server, namespace)

    def topic_id(self, topic: str) -> str:
        """See `PartitionedBroker`."""
        return self._call("topic id", lambda: self._server.topics[topic].id)

    def create_topic(self, topic: str) -> None:
        """See `Broker`."""
        self._call("create topic", lambda: self._server.create(topic))

    def topic_problem(self, topic: str) -> str | None:
        """See `NamesBroker`."""
        return None if topic else "expected a name"

    def topics(self) -> dict[str, int]:
        """See `Broker`."""
        return self._call("topics", lambda: {name: len(self._server.records(name)) for name in self._server.topics})

    def reads(self, group: str, topic: str) -> bool:
        """See `ReadersBroker`."""

        def reads() -> bool:
            return self._server.reads(group, topic)

        return self._call("readers", reads)

    def close(self) -> None:
        """See `Broker`."""


@dataclass(slots=True)
class _Out:
    delivery: Delivery
    since_ns: int
    settled: bool = False


@dataclass(slots=True)
class _Part:
    """A partition of a member: where it reads on, and what it has handed out."""

    number: int
    position: int
    committed: int
    out: dict[int, _Out] = field(default_factory=dict)

    def to_commit(self) -> int:
        """The offset up to which all records are settled."""
        return min((offset for offset, one in self.out.items() if not one.settled), default=self.position)


class _GroupMember(_Client):
    """What a member of a group has in common: it joins, beats in a thread of its own, and joins again if expelled."""

    def __init__(
        self,
        world: World,
        server: LogServer,
        topics: tuple[str, ...],
        group: str,
        idle_ms: int,
        name: Callable[[], str],
    ) -> None:
        super().__init__(world, server)
        self._topics, self._group, self._idle_ms, self._name = topics, group, idle_ms, name
        self._member = ""
        self._closed = threading.Event()
        threading.Thread(target=self._beat_on, name="kafka-heartbeat", daemon=True).start()

    def _beat_on(self) -> None:
        while not self._closed.wait(self._idle_ms / 4_000):
            with contextlib.suppress(BrokerUnavailable):
                self._beat_once()

    def _beat_once(self) -> None:
        member = self._member
        self._call("heartbeat", lambda: self._server.beat(self._group, member))

    def _join(self) -> None:
        """Join the group, unless this member is in it."""
        if self._closed.is_set():
            raise BrokerUnavailable("this consumer was closed: nothing was read")
        if not self._member or not self._server.beat(self._group, self._member):
            self._member = name = self._name()
            self._call("join", lambda: self._server.join(self._group, name, self._topics, self._idle_ms))

    def _wait(self, timeout_ms: int, ready: Callable[[], bool]) -> None:
        with self._server.changed:
            if not ready() and timeout_ms > 0:
                self._server.changed.wait(timeout_ms / 1_000)

    def close(self) -> None:
        """See `BrokerConsumer`."""
        if not self._closed.is_set():
            self._closed.set()
            with contextlib.suppress(BrokerUnavailable):
                self._call("leave", lambda: self._server.leave(self._group, self._member))


class RemoteLogConsumer(_GroupMember):
    """A member that settles records one by one, see `PartitionedConsumer`."""

    def __init__(
        self,
        world: World,
        server: LogServer,
        topics: tuple[str, ...],
        group: str,
        idle_ms: int,
        name: Callable[[], str],
    ) -> None:
        self._parts: dict[Place, _Part] = {}
        super().__init__(world, server, topics, group, idle_ms, name)

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        """See `BrokerConsumer`."""
        if limit > 0:
            self._wait(timeout_ms, self._readable)
        self._join()
        member = self._member
        ours = self._call("poll", lambda: self._server.assignments(self._group, member))
        return self._take(limit, ours)

    def _readable(self) -> bool:
        parts = self._parts.items()
        return not parts or any(len(self._server.topics[topic].logs[n]) > part.position for (topic, n), part in parts)

    def _take(self, limit: int, ours: Mapping[Place, int]) -> list[Delivery]:
        """Hand out records of these partitions, which the client has fetched."""
        server, now_ns = self._server, self._world.scheduler.now_ns
        self._parts = {place: part for place, part in self._parts.items() if ours.get(place) == part.number}
        for place, number in ours.items():
            if place not in self._parts:
                start = server.committed(self._group, place)
                self._parts[place] = _Part(number, start, start)
        taken: list[Delivery] = []
        for place, part in self._parts.items():
            for offset, one in part.out.items():
                if not one.settled and now_ns - one.since_ns >= self._idle_ms * MS and len(taken) < limit:
                    one.since_ns = now_ns
                    one.delivery = self._delivery(place, part, offset, one.delivery.message)
                    taken.append(one.delivery)
            for message in server.read(*place, part.position, limit - len(taken)):
                delivery = self._delivery(place, part, part.position, message)
                part.out[part.position] = _Out(delivery, now_ns)
                part.position += 1
                taken.append(delivery)
        return taken

    def _delivery(self, place: Place, part: _Part, offset: int, message: Message) -> Delivery:
        count = self._server.deliver(self._group, place, offset)
        return Delivery(message, (place, part.number, offset), count)

    def _held(self, delivery: Delivery) -> tuple[Place, _Part, _Out] | None:
        place, number, offset = delivery.handle
        part = self._parts.get(place)
        if part is None or part.number != number or offset not in part.out:
            return None
        return place, part, part.out[offset]

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See `BrokerConsumer`."""
        moved: set[Place] = set()
        for delivery in deliveries:
            held = self._held(delivery)
            if held is not None:
                held[2].settled = True
                moved.add(held[0])
        offsets = {place: (part.to_commit(), part.number) for place in moved if (part := self._parts.get(place))}
        if not offsets:
            return
        member = self._member
        try:
            self._call("commit", lambda: self._server.commit(self._group, member, offsets))
        except Expelled:
            self.rejoin()
            return
        self._forget(offsets)

    def _forget(self, offsets: Mapping[Place, tuple[int, int]]) -> None:
        for place, (offset, _) in offsets.items():
            part = self._parts.get(place)
            if part is not None:
                part.committed = offset
                part.out = {at: one for at, one in part.out.items() if at >= offset}

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        """See `BrokerConsumer`. One transaction; after a lost reply the member joins again, and the offsets tell."""
        answers: list[PublishFailure | None] = [None] * len(pairs)
        chosen = [
            (index, found)
            for index, (delivery, _) in enumerate(pairs)
            if (found := self._held(delivery)) is not None and not found[2].settled
        ]
        if not chosen:
            return answers
        for _, (_, _, one) in chosen:
            one.settled = True
        offsets = {place: (part.to_commit(), part.number) for _, (place, part, _) in chosen}
        messages = [pairs[index][1] for index, _ in chosen]
        member, done = self._member, False
        try:
            failures = self._call(
                "forward", _once(lambda: self._server.send_forwards(self._group, member, offsets, messages))
            )
            done = not any(failures)
            for (index, _), failure in zip(chosen, failures, strict=True):
                answers[index] = failure
            if done:
                self._forget(offsets)
        except Expelled:
            self.rejoin()
            raise BrokerUnavailable("the group has expelled this member: nothing was sent") from None
        except BrokerInDoubt:
            self.rejoin()
            raise
        finally:
            if not done:
                for _, (_, _, one) in chosen:
                    one.settled = False
        return answers

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        """See `BrokerConsumer`."""
        for delivery in deliveries:
            held = self._held(delivery)
            if held is not None:
                held[2].since_ns = self._world.scheduler.now_ns

    def assignments(self) -> dict[Place, int]:
        """See `PartitionedConsumer`."""
        return {place: part.number for place, part in self._parts.items()}

    def assignment_of(self, delivery: Delivery) -> int:
        """See `PartitionedConsumer`."""
        number: int = delivery.handle[1]
        return number

    def topic_id_of(self, delivery: Delivery) -> str:
        """See `PartitionedConsumer`."""
        place: Place = delivery.handle[0]
        return self._server.topics[place[0]].id

    def rejoin(self) -> None:
        """See `PartitionedConsumer`."""
        self._parts = {}
        member, self._member = self._member, ""
        with contextlib.suppress(BrokerUnavailable):
            self._call("leave", lambda: self._server.leave(self._group, member))


@dataclass(slots=True)
class _Reading:
    """A partition of a log reader."""

    place: Place
    number: int
    source: str
    began: int | None
    position: int
    expected: int | None


class RemoteLogReader(_GroupMember):
    """A member whose caller keeps the positions, see `LogReader`."""

    def __init__(
        self,
        world: World,
        server: LogServer,
        topic: str,
        group: str,
        positions: PositionsOf,
        idle_ms: int,
        name: Callable[[], str],
    ) -> None:
        self._positions = positions
        self._parts: dict[str, _Reading] = {}
        super().__init__(world, server, (topic,), group, idle_ms, name)

    def expected(self) -> dict[str, int]:
        """See `LogReader`."""
        return {source: part.expected for source, part in self._parts.items() if part.expected is not None}

    def rewind(self, source: str, position: int | None) -> None:
        """See `LogReader`."""
        part = self._parts.get(source)
        if part is not None:
            start = part.began if position is None else position
            part.position, part.expected = start or 0, position

    def poll(self, limit: int, timeout_ms: int) -> LogBatch | None:
        """See `LogReader`."""
        self._wait(timeout_ms, self._readable)
        self._join()
        member = self._member
        ours = self._call("assignment", lambda: self._server.assignments(self._group, member))
        self._parts = {s: part for s, part in self._parts.items() if ours.get(part.place) == part.number}
        gained = [place for place in ours if self._source(place) not in self._parts]
        if gained:
            sources = [self._source(place) for place in gained]
            for place, source, position in zip(gained, sources, self._positions(sources), strict=True):
                committed = self._server.committed(self._group, place)
                start = position if position is not None else committed
                self._parts[source] = _Reading(place, ours[place], source, committed, start, position)
        part = max(self._parts.values(), key=self._behind, default=None)
        if part is None or not self._behind(part):
            return None
        start = part.position
        messages = self._call("fetch", lambda: self._server.read(*part.place, start, limit))
        if not messages:
            return None
        expected, part.position = part.expected, part.position + len(messages)
        part.expected = part.position
        return LogBatch(part.source, expected, part.position, self._deliveries(messages))

    @staticmethod
    def _deliveries(messages: Sequence[Message]) -> Iterator[Delivery]:
        return (Delivery(message, None) for message in messages)

    def _source(self, place: Place) -> str:
        return source_of(self._group, self._server.topics[place[0]].id, place[1])

    def _behind(self, part: _Reading) -> int:
        return len(self._server.topics[part.place[0]].logs[part.place[1]]) - part.position

    def _readable(self) -> bool:
        return not self._parts or any(self._behind(part) > 0 for part in self._parts.values())

    def done(self, part: LogBatch) -> None:
        """See `LogReader`."""
        known = self._parts.get(part.source)
        if known is None:
            return
        offsets = {known.place: (part.next, known.number)}
        with contextlib.suppress(BrokerUnavailable, Expelled):
            member = self._member
            self._call("commit", lambda: self._server.commit(self._group, member, offsets))

    def beat(self) -> None:
        """See `LogReader`."""
        self._beat_once()


class RemoteSender(_Client):
    """Sends claims in transactions, see `ClaimSender`."""

    def __init__(self, world: World, server: LogServer, namespace: str) -> None:
        super().__init__(world, server)
        self._namespace = namespace
        self._epochs: dict[int, int] = {}

    def take_over(self, shard: int) -> int | None:
        """See `ClaimSender`."""
        name = f"{self._namespace}.claims-{shard}"
        self._epochs.pop(shard, None)
        self._epochs[shard] = self._call("init producer", lambda: self._server.begin_producer(name))
        return self._call("last claim", lambda: self._server.claims.get((self._namespace, shard)))

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """See `ClaimSender`."""
        epoch = self._epochs.get(shard)
        if epoch is None:
            raise BrokerInDoubt("the producer of the shard was given up", in_doubt=True)
        name, returned = f"{self._namespace}.claims-{shard}", [return_to_origin(message) for message in messages]
        try:
            return self._call(
                "send claim",
                _once(lambda: self._server.send_claim(name, epoch, (self._namespace, shard, number), returned)),
            )
        except (BrokerInDoubt, Fenced):
            self._epochs.pop(shard, None)
            raise

    def stale(self, shard: int) -> bool:
        """See `ClaimSender`."""
        return False

    def close(self) -> None:
        """See `ClaimSender`."""
        self._epochs.clear()
