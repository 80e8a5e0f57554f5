"""The log broker of a simulated world: partitioned topics, offsets, groups and transactions like those of Kafka.

The server is a state machine, and each request is one step. A client keeps the same state as a Kafka client: its
partitions, the records that it has handed out, and the epoch of its producers. The server decides by its own state
alone. So a process that was paused and continues later gets the same refusals as from Kafka:

- a member that was silent for its session time is expelled, and other members get its partitions
- a partition that has to move stays with its member until that member gives the partition up
- only the present owner of a partition commits offsets there; a commit names the topic, not the topic's id
- a newer producer with the same id fences the older one; each transaction of the older one is refused
- a record above the size limit is refused, and so is each record for an absent topic

Source: KIP-98 (transactions), KIP-447 (offsets with group metadata), KIP-429 (a partition keeps its owner if possible).
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from retry_topic.brokers.kafka.offset_tracker import PartitionOffsets
from retry_topic.brokers.protocol import Fenced, PublishFailure
from retry_topic.message import Message, Source, topic_names
from retry_topic.simulation.broker_faults import BrokerServer
from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.scenario import Fault
from wheel_sched.simulation.world import World

Place = tuple[str, int]  # topic and partition

LARGEST_BYTES = 16 * 1024  # the size limit of topics in histories: small, so that a history stays cheap


@dataclass(slots=True)
class _Topic:
    id: str
    logs: list[list[tuple[Message, int]]]


@dataclass(slots=True)
class _Member:
    topics: tuple[str, ...]
    idle_ns: int
    seen_ns: int


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset to commit, with its metadata text.

    Args:
        number: the number of the partition's assignment.
        sequence: a number that rises with each request of a member. The server ignores a request that arrives after a
            later one.
        offset: the offset.
        text: the metadata text.
    """

    number: int
    sequence: int
    offset: int
    text: str


@dataclass(slots=True)
class _Group:
    members: dict[str, _Member] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)  # that a member has ever read
    owners: dict[Place, tuple[str, int]] = field(default_factory=dict)  # the owner, and the number of its assignment
    moving: set[Place] = field(default_factory=set)  # partitions that their owners have to give up
    committed: dict[Place, Committed] = field(default_factory=dict)
    assigned: int = 0  # how often the partitions were assigned


class Expelled(Exception):
    """The member no longer owns the partition."""


class LogServer(BrokerServer):
    """The simulated cluster. Each public method is one request.

    Args:
        world: the world.
        partitions: the number of partitions of each topic. Defaults to 2.
        largest_bytes: the `max.message.bytes` of each topic. Defaults to `LARGEST_BYTES`.
    """

    def __init__(self, world: World, partitions: int = 2, largest_bytes: int = LARGEST_BYTES) -> None:
        super().__init__(world)
        self._largest_bytes = largest_bytes
        self._partitions = partitions
        self.topics: dict[str, _Topic] = {}
        self.groups: dict[str, _Group] = {}
        self.epochs: dict[str, int] = {}  # of producers, by transactional id
        self.claims: dict[tuple[str, int], int] = {}
        self.positions: Callable[[], Mapping[str, int]] = dict  # the positions that the store keeps, by source
        self.appended: dict[str, list[Message]] = {}  # by name of the topic, deleted topics included
        self.deleted: list[Message] = []  # records of deleted topics
        self.lost: list[Message] = []  # records of deleted topics that no group had settled
        self._slow_until_ns = 0
        self._numbers = 0

    def strike(self, fault: Fault) -> None:
        """Let a fault happen: a fault that only the log broker has, or one that every server has."""
        rng = self.world.rng
        match fault.kind:
            case "redeliver":  # expels all members: each joins again, and partitions may move
                for group in self.groups.values():
                    group.members.clear()
                    self._assign(group)
            case "expel":
                known = [(name, member) for name, group in self.groups.items() for member in group.members]
                if known:
                    name, member = rng.choice(known)
                    self.world.note("broker", f"expels {member}")
                    self.leave(name, member)
            case "fence":  # the coordinator does this to a producer whose transaction has timed out
                for name in self.epochs:
                    self.epochs[name] += 1
            case "recreate":
                self._recreate(rng.choice([*self.topics]))
            case "slow-fetch":
                self._slow_until_ns = self.world.scheduler.now_ns + fault.amount * MS
            case _:
                super().strike(fault)
        self.answer_waiting()

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- topics

    def create(self, *topics: str) -> None:
        for topic in topics:
            self._create(topic)

    def _create(self, topic: str) -> None:
        if topic not in self.topics:
            self.topics[topic] = _Topic(f"t{self._number()}", [[] for _ in range(self._partitions)])

    def _recreate(self, name: str) -> None:
        """Delete a topic and create it again. Its records and the offsets that groups have committed are gone."""
        self.world.note("broker", f"{name} is deleted and made anew")
        self.lost += self._unsettled_of(name)
        self.deleted += self.records(name)
        del self.topics[name]
        self.create(name)
        for group in self.groups.values():
            for partition in range(self._partitions):
                group.committed.pop((name, partition), None)

    def append(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Append each message to its topic. Returns for each message None, or why the broker refused it."""
        answers = self._refusals(messages)
        for message, refusal in zip(messages, answers, strict=True):
            if refusal is not None:
                continue
            topic = self.topics[message.topic]
            count = len(topic.logs)
            place = message.partition
            if place is None or place >= count:
                place = zlib.crc32(message.key) % count if message.key is not None else self._number() % count
            topic.logs[place].append((message, self.wall_ms()))
            self.appended.setdefault(message.topic, []).append(message)
        return answers

    def _refusals(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        answers: list[PublishFailure | None] = []
        for message in messages:
            failure = None
            if message.topic not in self.topics:
                failure = PublishFailure(f"unknown topic {message.topic!r}", transient=False)
            elif _size(message) > self._largest_bytes:
                failure = PublishFailure(f"{message.topic}: message size too large", transient=False)
            answers.append(failure)
        return answers

    def records(self, topic: str) -> list[Message]:
        """All records that the topic has now."""
        found = self.topics.get(topic)
        return [] if found is None else [message for log in found.logs for message, _ in log]

    def read(self, place: Place, start: int, limit: int) -> list[tuple[int, Message]]:
        """Read records with their offsets. A client whose position is beyond the end of the log begins again at 0."""
        topic, partition = place
        log = self.topics[topic].logs[partition]
        start = start if start <= len(log) else 0
        if self._slow_until_ns > self.world.scheduler.now_ns:
            limit = min(limit, 1)
        return [
            (at, Message(topic, one.value, one.key, one.headers, Source(topic, partition, str(at), at_ms)))
            for at, (one, at_ms) in enumerate(log[start : start + max(0, limit)], start)
        ]

    def fetch(
        self, group: str, member: str, positions: Mapping[Place, int], limit: int
    ) -> tuple[dict[Place, int], list[tuple[Place, int, Message]]]:
        """Return the member's partitions with their assignment numbers, and up to `limit` records from `positions`."""
        ours = self.assignments(group, member)
        found: list[tuple[Place, int, Message]] = []
        for place, position in positions.items():
            if place in ours:
                found += [(place, *one) for one in self.read(place, position, limit - len(found))]
        return ours, found

    # -- groups

    def join(self, group: str, member: str, topics: tuple[str, ...], idle_ms: int) -> None:
        for topic in topics:
            self.create(topic)
        held = self.groups.setdefault(group, _Group())
        held.members[member] = _Member(topics, idle_ms * MS, self.world.scheduler.now_ns)
        held.topics.update(topics)
        self._assign(held)

    def leave(self, group: str, member: str) -> None:
        held = self.groups.setdefault(group, _Group())
        held.members.pop(member, None)
        self._assign(held)

    def beat(self, group: str, member: str) -> list[Place] | None:
        """Take a member's heartbeat. Returns the partitions that the member has to give up.

        None: the group has expelled the member, which has to join again.
        """
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
        return None if known is None else sorted(place for place in held.moving if held.owners[place][0] == member)

    def give_up(self, group: str, member: str, places: Sequence[Place]) -> None:
        """Take the partitions that a member gives up, and assign them to other members."""
        held = self.groups.setdefault(group, _Group())
        for place in places:
            if place in held.moving and held.owners[place][0] == member:
                del held.owners[place]
        self._assign(held)

    def _assign(self, group: _Group) -> None:
        """Choose an owner for each partition. The members take turns.

        A partition whose owner changes stays with the old owner until the old owner gives it up.
        """
        old, group.owners, group.moving = group.owners, {}, set()
        group.assigned += 1
        wanted = sorted({topic for member in group.members.values() for topic in member.topics})
        for topic in wanted:
            able = [name for name, member in group.members.items() if topic in member.topics]
            for partition in range(len(self.topics[topic].logs)):
                place = topic, partition
                owner = able[(partition + len(topic)) % len(able)]
                before = old.get(place)
                if before is not None and before[0] in group.members:
                    group.owners[place] = before
                    if before[0] != owner:
                        group.moving.add(place)
                else:
                    group.owners[place] = owner, self._number()

    def assignments(self, group: str, member: str) -> dict[Place, int]:
        """The partitions of a member, each with the number of the assignment."""
        held = self.groups.setdefault(group, _Group())
        return {place: number for place, (owner, number) in held.owners.items() if owner == member}

    def committed(self, group: str, places: Sequence[Place]) -> list[tuple[int, str]]:
        """The committed offset of each partition and its metadata text. -1: no offset was committed."""
        held = self.groups.setdefault(group, _Group()).committed
        return [(held[place].offset, held[place].text) if place in held else (-1, "") for place in places]

    def commit(self, group: str, member: str, offsets: Mapping[Place, Committed]) -> None:
        """Commit offsets.

        Raises:
            Expelled: the member does not own all the partitions. Nothing was committed.
        """
        held = self.groups.setdefault(group, _Group())
        for place, one in offsets.items():
            if held.owners.get(place) != (member, one.number):
                raise Expelled
        for place, one in offsets.items():
            before = held.committed.get(place)
            # requests of one connection keep their order: a late commit does not replace a newer one of its assignment
            if before is None or before.number != one.number or before.sequence < one.sequence:
                held.committed[place] = one

    def unsettled(self, taken_in: Mapping[str, int]) -> dict[str, int]:
        """The number of records that a group has not settled, by topic.

        Args:
            taken_in: the positions that the store keeps, by source. For the group of an intake, the records before the
                store's position are settled. If the store keeps none, the offset that the group has committed counts.
        """
        found: Counter[str] = Counter()
        for name, group in self.groups.items():
            for topic in sorted(group.topics & self.topics.keys()):
                for partition in range(self._partitions):
                    found[topic] += len(self._left(name, (topic, partition), taken_in))
        return {topic: count for topic, count in found.items() if count}

    def _left(self, group: str, place: Place, taken_in: Mapping[str, int]) -> list[Message]:
        """The records of a partition that a group has not settled, by its committed offset and metadata text."""
        log, start = self.topics[place[0]].logs[place[1]], PartitionOffsets(*self._position(group, place, taken_in))
        return [
            log[offset][0]
            for offset in range(start.position, len(log))
            if start.admit(offset, log[offset][0], 0) is not None
        ]

    def _position(self, group: str, place: Place, taken_in: Mapping[str, int]) -> tuple[int, str]:
        """The offset of a group's first unsettled record, and the metadata text that was committed with it, or ""."""
        topic_id = self.topics[place[0]].id
        source = topic_names.source_of(group, topic_id, place[1])
        if group.endswith(".intake") and source in taken_in:  # without a position in the store, the offset counts
            return taken_in[source], ""
        held = self.groups.get(group, _Group())
        known = held.committed.get(place)
        if known is not None and group.endswith(".intake"):
            return known.offset, ""
        if known is None or not known.text.endswith(f"id:{topic_id}"):  # the offset of a deleted topic
            return 0, ""
        return known.offset, known.text.partition(" id:")[0]

    def _unsettled_of(self, topic: str) -> list[Message]:
        """The records of a topic that its groups have not settled; all records if no group reads the topic."""
        readers = [
            name
            for name, group in self.groups.items()
            if self.reads(name, topic) or any(place[0] == topic for place in group.committed)
        ]
        if not readers:
            return self.records(topic)
        taken_in = self.positions()
        return [
            one
            for name in readers
            for partition in range(self._partitions)
            for one in self._left(name, (topic, partition), taken_in)
        ]

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
        """Append the messages of a claim and commit the claim's number, in one transaction."""
        self.check_producer(name, epoch)
        failures = self._refusals(messages)
        if any(failures):
            return failures
        namespace, shard, number = claim
        self.append(messages)
        self.claims[namespace, shard] = number
        return failures

    def send_forwards(
        self,
        producer: tuple[str, int],
        group: str,
        member: str,
        offsets: Mapping[Place, Committed],
        messages: Sequence[Message],
    ) -> list[PublishFailure | None]:
        """Append messages and commit offsets in one transaction. `producer`: its transactional id and epoch."""
        self.check_producer(*producer)
        failures = self._refusals(messages)
        if any(failures):
            return failures
        self.commit(group, member, offsets)
        self.append(messages)
        return failures

    def reads(self, group: str, topic: str) -> bool:
        """Whether a member of the group reads the topic."""
        held = self.groups.get(group, _Group())
        return any(topic in member.topics for member in held.members.values())


def _size(message: Message) -> int:
    headers = sum(len(name) + len(content) for name, content in message.headers)
    return len(message.value) + len(message.key or b"") + headers
