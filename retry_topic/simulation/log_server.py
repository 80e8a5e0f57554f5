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

import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from retry_topic.brokers.protocol import (
    Fenced,
    PublishFailure,
)
from retry_topic.message import Message, Source
from retry_topic.message.topic_names import source_of
from wheel_sched.simulation.scenario import Fault
from wheel_sched.simulation.world import MS, SimulatedServer, World

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


class LogServer(SimulatedServer):
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
        """See `SimulatedServer`. "redeliver" expels all members: each joins again, and partitions may change hands."""
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

    def unsettled(self, taken_in: Mapping[str, int]) -> dict[str, int]:
        """The number of records that a group has not settled, by topic.

        Args:
            taken_in: the positions that the store keeps, by source. They count for the groups of the intake, whose
                committed offsets only show the progress.
        """
        found: dict[str, int] = {}
        for name, group in self.groups.items():
            positions = {
                (topic.id, partition): taken_in.get(source_of(name, topic.id, partition), 0)
                for topic in self.topics.values()
                for partition in range(len(topic.logs))
            }
            offsets = positions if name.endswith(".intake") else group.offsets
            for topic in {topic for member in group.members.values() for topic in member.topics}:
                held = self.topics[topic]
                for partition, log in enumerate(held.logs):
                    left = len(log) - offsets.get((held.id, partition), 0)
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
            None
            if message.topic in self.topics
            else PublishFailure(f"unknown topic {message.topic!r}", transient=False)
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
            None
            if message.topic in self.topics
            else PublishFailure(f"unknown topic {message.topic!r}", transient=False)
            for message in messages
        ]
        if any(failures):
            return failures
        self.commit(group, member, offsets)
        self.append(messages)
        return failures

    def reads(self, group: str, topic: str) -> bool:
        """Whether a member of the group reads the topic."""
        held = self.groups.get(group, _Group())
        return any(topic in member.topics for member in held.members.values())
