"""The log broker of a simulated world: topics of partitions, offsets, groups and transactions as Kafka has them.

The server is one state machine; each request is one step of it. A client of a process keeps what a Kafka client keeps:
its partitions, what it has handed out, and the epoch of its producers. The server decides by its own state alone, so a
process that stood still and wakes up later meets the same refusals as with Kafka:

- a member that was silent for its session time is expelled, and its partitions go to others
- only the present owner of a partition commits offsets there
- a newer producer with the same id fences the older one; a transaction of the older one is refused as a whole

Source: KIP-98 (transactions), KIP-447 (offsets with group metadata), KIP-429 (partitions stay where they can).
"""

from __future__ import annotations

import contextlib
import threading
import zlib
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
from retry_topic.message import Message, Source
from retry_topic.message.headers import return_to_origin
from retry_topic.message.topic_names import source_of
from wheel_sched.errors import BrokerUnavailable
from wheel_sched.simulation.scenario import Fault
from wheel_sched.simulation.world import MS, Lost, Refused, Server, World

T = TypeVar("T")
Place = tuple[str, int]  # topic and partition

PARTITIONS = 2


@dataclass(slots=True)
class _Topic:
    id: str
    logs: list[list[tuple[Message, int]]]


@dataclass(slots=True)
class _Member:
    topics: tuple[str, ...]
    idle_ns: int
    seen_ns: int


@dataclass(slots=True)
class _Group:
    members: dict[str, _Member] = field(default_factory=dict)
    owners: dict[Place, tuple[str, int]] = field(default_factory=dict)  # member and number of the assignment
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)  # by topic id and partition
    commits: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # number of the assignment, offset
    deliveries: dict[tuple[str, int, int], int] = field(default_factory=dict)


class Expelled(Exception):
    """The member does not own the partition any more."""


class LogServer(Server):
    """The cluster. Every method is one request."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "broker")
        world.servers["broker"] = self
        self.topics: dict[str, _Topic] = {}
        self.groups: dict[str, _Group] = {}
        self.epochs: dict[str, int] = {}  # of producers, by transactional id
        self.claims: dict[tuple[str, int], int] = {}
        self.changed = threading.Condition()
        self._numbers = 0

    def strike(self, fault: Fault) -> None:
        """See `Server`. "redeliver" expels all members: each joins again, and partitions may change hands."""
        if fault.kind != "redeliver":
            super().strike(fault)
            return
        for group in self.groups.values():
            group.members.clear()
            group.owners.clear()
        self._wake()

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- topics

    def create(self, topic: str) -> None:
        if topic not in self.topics:
            self.topics[topic] = _Topic(f"t{self._number()}", [[] for _ in range(PARTITIONS)])

    def append(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Append each message to its topic; a failure for each whose topic is absent."""
        answers: list[PublishFailure | None] = []
        for message in messages:
            topic = self.topics.get(message.topic)
            if topic is None:
                answers.append(PublishFailure(f"unknown topic {message.topic!r}", transient=False))
                continue
            count = len(topic.logs)
            place = message.partition
            if place is None or place >= count:
                place = zlib.crc32(message.key) % count if message.key is not None else self._number() % count
            topic.logs[place].append((message, self.wall_ms()))
            answers.append(None)
        self._wake()
        return answers

    def records(self, topic: str) -> list[Message]:
        """All records of a topic."""
        found = self.topics.get(topic)
        return [] if found is None else [message for log in found.logs for message, _ in log]

    def read(self, topic: str, partition: int, start: int, limit: int) -> list[Message]:
        log = self.topics[topic].logs[partition]
        return [
            Message(topic, one.value, one.key, one.headers, Source(topic, partition, str(start + offset), at_ms))
            for offset, (one, at_ms) in enumerate(log[start : start + limit])
        ]

    # -- groups

    def join(self, group: str, member: str, topics: tuple[str, ...], idle_ms: int) -> None:
        for topic in topics:
            self.create(topic)
        held = self.groups.setdefault(group, _Group())
        held.members[member] = _Member(topics, idle_ms * MS, self.world.scheduler.now_ns)
        self._assign(held)

    def leave(self, group: str, member: str) -> None:
        held = self.groups.setdefault(group, _Group())
        held.members.pop(member, None)
        self._assign(held)

    def beat(self, group: str, member: str) -> bool:
        """A sign of life; False: the member was expelled and has to join again."""
        held = self.groups.setdefault(group, _Group())
        now_ns = self.world.scheduler.now_ns
        known = held.members.get(member)
        if known is not None:
            known.seen_ns = now_ns
        silent = [name for name, one in held.members.items() if now_ns - one.seen_ns >= one.idle_ns]
        for name in silent:
            del held.members[name]
        if silent:
            self._assign(held)
        return known is not None

    def _assign(self, group: _Group) -> None:
        """Give each partition a member. A partition stays with its member while that is fair."""
        old, group.owners = group.owners, {}
        wanted = sorted({topic for member in group.members.values() for topic in member.topics})
        for topic in wanted:
            able = [name for name, member in group.members.items() if topic in member.topics]
            for partition in range(len(self.topics[topic].logs)):
                place = topic, partition
                owner = able[(partition + len(topic)) % len(able)]
                before = old.get(place)
                number = before[1] if before is not None and before[0] == owner else self._number()
                group.owners[place] = owner, number
        self._wake()

    def assignments(self, group: str, member: str) -> dict[Place, int]:
        held = self.groups.setdefault(group, _Group())
        return {place: number for place, (owner, number) in held.owners.items() if owner == member}

    def committed(self, group: str, place: Place) -> int:
        held = self.groups.setdefault(group, _Group())
        return held.offsets.get((self.topics[place[0]].id, place[1]), 0)

    def commit(self, group: str, member: str | None, offsets: Mapping[Place, tuple[int, int]]) -> None:
        """Commit offsets, given with the number of the assignment.

        Raises:
            Expelled: the member does not own all of the partitions. Nothing was committed.
        """
        held = self.groups.setdefault(group, _Group())
        for place, (_, number) in offsets.items():
            if member is not None and held.owners.get(place) != (member, number):
                raise Expelled
        for (topic, partition), (offset, number) in offsets.items():
            key = self.topics[topic].id, partition
            before = held.commits.get(key)
            # requests of one connection keep their order: a late commit of the same assignment is not the last word
            if before is None or before[0] != number or before[1] <= offset:
                held.commits[key] = number, offset
                held.offsets[key] = offset

    def deliver(self, group: str, place: Place, offset: int) -> int:
        """Count that a record is handed out; answers how often it was, this time included."""
        counts = self.groups[group].deliveries
        key = self.topics[place[0]].id, place[1], offset
        counts[key] = counts.get(key, 0) + 1
        return counts[key]

    def unsettled(self) -> dict[str, int]:
        """The number of records that a group has not settled, by topic."""
        found: dict[str, int] = {}
        for group in self.groups.values():
            for topic in {topic for member in group.members.values() for topic in member.topics}:
                held = self.topics[topic]
                for partition, log in enumerate(held.logs):
                    left = len(log) - group.offsets.get((held.id, partition), 0)
                    if left:
                        found[topic] = found.get(topic, 0) + left
        return found

    # -- transactions

    def begin_producer(self, name: str) -> int:
        self.epochs[name] = self.epochs.get(name, 0) + 1
        return self.epochs[name]

    def check_producer(self, name: str, epoch: int) -> None:
        if self.epochs.get(name) != epoch:
            raise Fenced(f"{name}: a newer producer has taken over: nothing was sent")

    def send_claim(
        self, name: str, epoch: int, claim: tuple[str, int, int], messages: Sequence[Message]
    ) -> list[PublishFailure | None]:
        """Append messages and commit the claim's number, all or nothing."""
        self.check_producer(name, epoch)
        failures = [
            None if message.topic in self.topics else PublishFailure(f"unknown topic {message.topic!r}", transient=False)
            for message in messages
        ]
        if any(failures):
            return failures
        namespace, shard, number = claim
        self.append(messages)
        self.claims[namespace, shard] = number
        return failures

    def send_forwards(
        self, group: str, member: str, offsets: Mapping[Place, tuple[int, int]], messages: Sequence[Message]
    ) -> list[PublishFailure | None]:
        """Append messages and commit offsets, all or nothing."""
        failures = [
            None if message.topic in self.topics else PublishFailure(f"unknown topic {message.topic!r}", transient=False)
            for message in messages
        ]
        if any(failures):
            return failures
        self.commit(group, member, offsets)
        self.append(messages)
        return failures


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
        except Refused:
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
        return RemoteLogConsumer(self._world, self._server, joining(topics, group, idle_ms), group, idle_ms, self._member)

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
            held = self._server.groups.get(group, _Group())
            return any(topic in member.topics for member in held.members.values())

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
        self, world: World, server: LogServer, topics: tuple[str, ...], group: str, idle_ms: int, name: Callable[[], str]
    ) -> None:
        super().__init__(world, server)
        self._topics, self._group, self._idle_ms, self._name = topics, group, idle_ms, name
        self._member = ""
        self._closed = threading.Event()
        threading.Thread(target=self._beat_on, name="kafka-heartbeat", daemon=True).start()

    def _beat_on(self) -> None:
        while not self._closed.wait(self._idle_ms / 4_000):
            with contextlib.suppress(BrokerUnavailable):
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
        self, world: World, server: LogServer, topics: tuple[str, ...], group: str, idle_ms: int, name: Callable[[], str]
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
        member = self._member
        self._call("heartbeat", lambda: self._server.beat(self._group, member))


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
