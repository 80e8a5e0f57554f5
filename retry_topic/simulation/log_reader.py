"""The log reader of a simulated process: a group member that stores no positions. The intake that uses it stores them.

It does what `KafkaLog` does. The simulated server does the work of the cluster and of the real client library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from retry_topic.brokers.protocol import Delivery, LogBatch, PositionsOf
from retry_topic.message import Message, topic_names
from retry_topic.simulation.group_member import GroupMember
from retry_topic.simulation.log_server import Committed, Expelled, LogServer, Place
from wheel_sched.errors import BrokerUnavailable
from wheel_sched.simulation.world import World


@dataclass(slots=True)
class _Reading:
    """A partition that a log reader reads, and its positions.

    Args:
        number: the number of the partition's assignment.
        source: the store's permanent name for the partition.
        began: the position at which the member began to read; None if neither the intake nor the group knew one.
        position: the position of the next record to read.
        expected: the position that the intake expects next; None if it knows none.
    """

    number: int
    source: str
    began: int | None
    position: int
    expected: int | None


class RemoteLogReader(GroupMember):
    """A group member that stores no positions; see the module. Implements `LogReader`, as `KafkaLog` does."""

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
        self._topic = topic
        self._topic_id = ""
        self._sequence = 0
        self._parts: dict[Place, _Reading] = {}
        super().__init__(world, server, (topic,), group, idle_ms, name)

    def expected(self) -> dict[str, int]:
        """The position of the next batch of each partition, by source; without the partitions of unknown position."""
        return {part.source: part.expected for part in self._parts.values() if part.expected is not None}

    def rewind(self, source: str, position: int | None) -> None:
        """Read the partition `source` again from `position`; None: from where this member began to read it."""
        for part in self._parts.values():
            if part.source == source:
                start = part.began if position is None else position
                part.position, part.expected = start or 0, position

    def poll(self, limit: int, timeout_ms: int) -> LogBatch | None:
        """The next records of one partition; None if there are none, or if the member has to join the group again.

        A poll that finds nothing does not call the server.
        """
        if not self._server.wait_until(self._readable, timeout_ms):
            return None
        self._join()
        if self._parts and self._is_anew():
            self._begin_anew()
            return None
        member = self._member
        ours, seen = self._call("assignment", lambda: (self._server.assignments(self._group, member), self._seen()))
        if member != self._member:
            return None
        self._assigned_then = seen
        self._parts = {place: part for place, part in self._parts.items() if ours.get(place) == part.number}
        gained = {place: number for place, number in ours.items() if place not in self._parts}
        if gained and not self._assigned(gained):
            return None
        place, part = max(self._parts.items(), key=lambda one: self._behind(*one), default=(None, None))
        if place is None or part is None or not self._behind(place, part):
            return None
        start = part.position
        records = self._call("fetch", lambda: self._server.read(place, start, limit))
        if self._id_of(self._topic) != self._topic_id:
            self._begin_anew()
            return None
        if not records or self._parts.get(place) is not part:
            return None
        expected, part.position = part.expected, records[-1][0] + 1
        part.expected = part.position
        return LogBatch(part.source, expected, part.position, self._deliveries([one for _, one in records]))

    @staticmethod
    def _deliveries(messages: Sequence[Message]) -> Iterator[Delivery]:
        return (Delivery(message, None) for message in messages)

    def _assigned(self, gained: Mapping[Place, int]) -> bool:
        """Start to read new partitions, from the intake's positions or else from the group's committed offsets.

        Returns False if the topic was deleted and created again. The next poll then joins the group again.
        """
        topic_id = self._id_of(self._topic)
        if self._parts and topic_id != self._topic_id:
            self._begin_anew()
            return False
        self._topic_id, places = topic_id, [*gained]
        sources = [topic_names.source_of(self._group, topic_id, partition) for _, partition in places]
        positions = self._positions(sources)
        known = self._call("offsets", lambda: self._server.committed(self._group, places))
        for place, source, position, (offset, text) in zip(places, sources, positions, known, strict=True):
            committed = offset if offset >= 0 and text == topic_id else None
            began = committed if position is None else position
            self._parts[place] = _Reading(gained[place], source, began, began or 0, position)
        return True

    def _is_anew(self) -> bool:
        """Whether the topic was deleted and created again. The real client asks the cluster about once a second."""
        return self._server.topics[self._topic].id != self._topic_id and self._id_of(self._topic) != self._topic_id

    def _begin_anew(self) -> None:
        """Forget the partitions and leave the group. The next poll joins again."""
        self._parts = {}
        self._leave()

    def _behind(self, place: Place, part: _Reading) -> int:
        """How many records of the partition are left to read; also above 0 if the position is beyond the log's end."""
        return abs(len(self._server.topics[place[0]].logs[place[1]]) - part.position)

    def _readable(self) -> bool:
        """Whether a poll has work: new records, or a new assignment of partitions."""
        return self._closed.is_set() or not self._joined() or any(self._behind(*one) for one in self._parts.items())

    def done(self, part: LogBatch) -> None:
        """Commit the position after a stored batch. Implements `LogReader.done`."""
        self._sequence += 1
        offsets = {
            place: Committed(known.number, self._sequence, part.next, self._topic_id)
            for place, known in self._parts.items()
            if known.source == part.source
        }
        member = self._member
        with contextlib.suppress(BrokerUnavailable, Expelled):
            self._call("commit", lambda: self._server.commit(self._group, member, offsets))

    def _revoked(self, places: Sequence[Place]) -> None:
        for place in places:
            self._parts.pop(place, None)

    def beat(self) -> None:
        """Stay a member of the group: send a heartbeat. Implements `LogReader.beat`."""
        self._beat_once()

    def close(self) -> None:
        """Leave the group. Implements `LogReader.close`."""
        if not self._closed.is_set():
            self._closed.set()
            self._leave()
