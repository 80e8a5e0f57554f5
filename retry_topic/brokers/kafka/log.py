"""A member of a group that reads whole partitions in order, from positions that somebody else keeps.

What is read is cut into slices of one partition. Where a partition begins, the keeper of its position says: the offsets
that are committed serve only those who look how far the group is. A member that lost a partition may still hold a slice
of it: the keeper refuses that, since the position has moved on.

A topic may be deleted and made anew under a running member: its partitions are other sources then, read from their
beginning. The client does not say when it goes on with another log of the name. So the topic's id is looked up when
partitions come, and asked for again after records were read: they are handed out when it is still the same. That costs
an answer's time, beside the reading, once for all that was read meanwhile. Offsets are committed with the id, so that
those of a topic that is gone are not taken for its successor's.

Kafka's own account of who may commit is so not needed for exactness; the store's fence does it (see `Position`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from retry_topic.brokers.kafka.back_pressure import PausedPartitions
from retry_topic.brokers.kafka.faults import EXPELLED, TOPIC_GONE, UNANSWERED, broker_error
from retry_topic.brokers.kafka.groups import Groups
from retry_topic.brokers.kafka.offset_tracker import RECORD_BYTES
from retry_topic.brokers.kafka.records import from_record
from retry_topic.brokers.kafka.topology import Topology
from retry_topic.brokers.protocol import Delivery, PositionsOf, Slice
from retry_topic.message.topic_names import source_of
from wheel_sched.errors import BrokerError, BrokerUnavailable
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.kafka")

_FULL, _LOW = 4_000, 1_000  # records in the buffers at which fetching pauses, and goes on
_AT_ONCE, _PARTS = 500, 4  # taken from the client before it is seen how large they are, and how often at a time
_TELL_S = 0.5
_ASK_S = 0.01  # how often the topic's id is asked for while records come, at most
_ASK_IDLE_S = 1.0  # and while none does: another log may be as long as what was read of the one before
_CLOSE_S = 5.0


class _Part:
    """One partition: its buffer, and how far it was cut."""

    def __init__(self, number: int, source: str) -> None:
        self.number = number
        self.source = source
        self.buffer: deque[Any] = deque()  # confluent-kafka's records
        self.unsure: list[Any] = []  # that may be another topic's
        self.asked_for: list[Any] = []  # that will be known to be this one's
        self.began: int | None = None
        self.expected: int | None = None
        self.done: int | None = None


def _deliveries(records: list[Any]) -> Iterator[Delivery]:
    """From the last to the first. Each is let go of at once: what many records have at a time, Python's garbage
    collection goes through again and again."""
    while records:
        yield Delivery(from_record(records.pop()), None)


class KafkaLog:
    """See `LogReader`; made by `KafkaBroker.log_reader`. One thread.

    Args:
        settings: librdkafka's, of a group member.
        topic: what it reads.
        group: whose member it is.
        topology: for the topic's id.
        groups: for where the group has committed.
        positions: answers for each source where it is to go on; it may take its time, and raise.
        full_bytes: in the buffers at which fetching pauses.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        group: str,
        topology: Topology,
        groups: Groups,
        positions: PositionsOf,
        full_bytes: int,
    ) -> None:
        self._settings = {**settings, "on_commit": self._told}
        self._topic = topic
        self._group = group
        self._topology = topology
        self._positions = positions
        self._groups = groups
        self._full_bytes = full_bytes
        self._failure: Exception | None = None
        self._topic_id = ""  # of the topic whose partitions we have
        self._asked: Any = None  # a look-up of the id that is under way
        self._ask_s = 0.0
        self._parts: dict[int, _Part] = {}
        self._bytes = 0  # in the buffers, about
        self._client: Any = None
        self._expelled = False
        self._paused = PausedPartitions()
        self._warned: set[int] = set()
        self._tell_s = 0.0
        self._closed = False

    def __repr__(self) -> str:
        return f"<KafkaLog {self._topic} partitions={sorted(self._parts)}>"

    def expected(self) -> dict[str, int]:
        """See `LogReader`."""
        return {part.source: part.expected for part in self._parts.values() if part.expected is not None}

    def rewind(self, source: str, position: int | None) -> None:
        """See `LogReader`.

        Raises:
            BrokerUnavailable: the partition could not be read from there; nothing was changed.
        """
        part = self._part(source)
        if part is None or self._client is None:
            return  # lost meanwhile
        # a store that has lost all it knew of the partition is given again what this member brought it
        offset = part.began if position is None else position
        try:
            self._client.seek(TopicPartition(self._topic, part.number, -2 if offset is None else offset))
        except KafkaException as error:
            raise broker_error(error, f"{source} could not be read from {offset}") from error
        self._empty(part)
        part.expected = position

    def poll(self, limit: int, timeout_ms: int) -> Slice | None:
        """See `LogReader`.

        Raises:
            BrokerUnavailable: the cluster does not answer.
            BrokerError: it refuses us: a right is missing, as the text says.
        """
        part = self._fullest()
        if part is None or len(part.buffer) < limit or sum(len(one.buffer) for one in self._parts.values()) < _LOW:
            self._fetch(0.0 if part is not None else timeout_ms / 1000)
            part = self._fullest()
        self._tell()
        if part is None:
            return None
        records = [part.buffer.popleft() for _ in range(min(limit, len(part.buffer)))]
        self._bytes -= _size(records)
        behind = records[-1].offset() + 1
        records.reverse()
        expected, part.expected = part.expected, behind
        return Slice(part.source, expected, behind, _deliveries(records))

    def done(self, part: Slice) -> None:
        """See `LogReader`."""
        known = self._part(part.source)
        if known is not None:
            known.done = part.next

    def beat(self) -> None:
        """See `LogReader`."""
        self._fetch(0.0)

    def close(self) -> None:
        """See `LogReader`."""
        if self._closed:
            return
        self._closed = True
        self._leave()

    # -- the client

    def _part(self, source: str) -> _Part | None:
        part = self._parts.get(int(source.rpartition("/")[2]))
        return part if part is not None and part.source == source else None

    def _fullest(self) -> _Part | None:
        return max(
            (part for part in self._parts.values() if part.buffer), key=lambda one: len(one.buffer), default=None
        )

    def _fetch(self, timeout_s: float) -> None:
        if self._closed:
            raise BrokerUnavailable("this log was closed: nothing was read")
        if self._expelled:
            self._leave()
        if self._client is None:
            self._expelled = False
            self._paused.begin()
            self._client = Consumer(self._settings)
            self._client.subscribe(
                [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
            )
        self._flow()
        until_s = time.monotonic() + timeout_s
        while True:
            known = len(self._parts)
            wait_s = max(0.0, min(0.1, until_s - time.monotonic()))
            if self._unsure and self._asked is not None:
                wait([self._asked], wait_s)
                wait_s = 0.0
            elif self._unsure:
                wait_s = max(0.0, min(wait_s, self._ask_s - time.monotonic()))
            record = self._client.poll(wait_s)
            if record is not None:
                self._keep([record])
                for _ in range(_PARTS):
                    if self._full or not (records := self._client.consume(_AT_ONCE, 0)):
                        break
                    self._keep(records)
            self._make_sure()
            if self._fullest() is not None or len(self._parts) != known or self._expelled:
                break
            if time.monotonic() >= until_s:
                break
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @property
    def _full(self) -> bool:
        return self._bytes >= self._full_bytes or self._count() >= _FULL

    def _count(self) -> int:
        return sum(len(part.buffer) + len(part.unsure) + len(part.asked_for) for part in self._parts.values())

    @property
    def _unsure(self) -> bool:
        return any(part.unsure or part.asked_for for part in self._parts.values())

    def _flow(self) -> None:
        """Pause fetching while the buffers are full, and nobody takes of them: back-pressure without leaving the
        group. A client that was paused takes half a second to fetch again."""
        if self._full:
            self._paused.pause(self._client)
        elif self._paused and self._count() <= _LOW and self._bytes <= self._full_bytes // 4:
            self._paused.resume(self._client)

    def _keep(self, records: Sequence[Any]) -> None:
        self._paused.came((self._topic, number) for number in {one.partition() for one in records if not one.error()})
        for record in records:
            error = record.error()
            if error is None:
                part = self._parts.get(record.partition())
                if part is None:
                    continue
                part.unsure.append(record)
                self._bytes += len(record) + RECORD_BYTES
            elif error.code() in EXPELLED:
                self._expelled = True
            elif error.fatal() or error.code() not in UNANSWERED | TOPIC_GONE:
                self._expelled = True
                raise broker_error(
                    KafkaException(error), f"topic {self._topic!r} cannot be read as group {self._group!r}"
                )
            elif error.code() not in self._warned:  # the client goes on by itself
                self._warned.add(error.code())
                logger.warning("kafka.nothing_read: %s: %s", self._topic, error.str())

    def _make_sure(self) -> None:
        """Ask whether the topic is still the one whose partitions we have; what was read before it said so may go."""
        parts = self._parts.values()
        if self._asked is not None:
            if not self._asked.done():
                return
            asked, self._asked = self._asked, None
            try:
                topic_id = self._topology.id_told(self._topic, asked)
            except BrokerError:  # it is deleted, or nobody answers: it is asked again
                self._ask_s = time.monotonic() + _ASK_IDLE_S
                return
            if topic_id != self._topic_id:
                self._begin_anew()
                return
            for part in parts:
                part.buffer.extend(part.asked_for)
                part.asked_for.clear()
        now_s = time.monotonic()
        if parts and now_s >= self._ask_s + (0.0 if self._unsure else _ASK_IDLE_S):
            self._ask_s = now_s + _ASK_S
            for part in parts:
                part.asked_for += part.unsure
                part.unsure.clear()
            self._asked = self._topology.ask_id(self._topic)
            if self._asked is None:  # topics have no ids
                for part in parts:
                    part.buffer.extend(part.asked_for)
                    part.asked_for.clear()

    def _begin_anew(self) -> None:
        """What was read and not handed out is dropped: the sources' positions say where to go on."""
        logger.warning("kafka.topic_recreated: %s has another id: its partitions are looked up again", self._topic)
        self._expelled = True
        for part in self._parts.values():
            self._empty(part)

    def _empty(self, part: _Part) -> None:
        for records in (part.buffer, part.unsure, part.asked_for):
            self._bytes -= _size(records)
            records.clear()

    def _assigned(self, client: Any, partitions: list[TopicPartition]) -> None:
        if self._paused.are_deaf((self._topic, place.partition) for place in partitions):
            self._expelled = True
            return
        try:
            topic_id = self._topology.topic_id(self._topic)
            if self._parts and topic_id != self._topic_id:  # those we have are of another one
                self._begin_anew()
                return
            self._topic_id = topic_id
            parts = [
                _Part(place.partition, source_of(self._group, self._topic_id, place.partition)) for place in partitions
            ]
            positions = self._positions([part.source for part in parts])
            known = self._groups.places(self._settings["group.id"], partitions)
        except Exception as error:  # what is raised in here, librdkafka would not know what to do with
            self._failure, self._expelled = error, True
            return
        # releases before this one committed no id
        committed = {place.partition: place.offset for place in known if place.metadata in (None, "", self._topic_id)}
        places = []
        for part, position in zip(parts, positions, strict=True):
            part.expected = position
            offset = committed.get(part.number, -1) if position is None else position
            part.began = offset if offset >= 0 else None
            places.append(TopicPartition(self._topic, part.number, offset if offset >= 0 else -2))
            self._parts[part.number] = part
        client.incremental_assign(places)

    def _revoked(self, client: Any, partitions: list[TopicPartition]) -> None:
        if client is not self._client:  # one that was left, and took long to close
            return
        self._tell(now=True)
        self._paused.lose((self._topic, place.partition) for place in partitions)
        for place in partitions:
            part = self._parts.pop(place.partition, None)
            if part is not None:
                self._empty(part)

    def _tell(self, *, now: bool = False) -> None:
        """Commit how far the slices are kept, for those who look."""
        if not now and time.monotonic() < self._tell_s:
            return
        self._tell_s = time.monotonic() + _TELL_S
        offsets = self._offsets()
        if offsets and self._client is not None:
            with contextlib.suppress(KafkaException):
                self._client.commit(offsets=offsets, asynchronous=not now)
            for part in self._parts.values():
                part.done = None

    def _offsets(self) -> list[TopicPartition]:
        return [
            TopicPartition(self._topic, part.number, part.done, self._topic_id)
            for part in self._parts.values()
            if part.done is not None
        ]

    def _told(self, error: Any, _: Any) -> None:
        if error is not None and error.code() in EXPELLED:
            self._expelled = True

    def _leave(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(KafkaException):
            offsets = self._offsets()
            if offsets and not self._expelled:
                client.commit(offsets=offsets, asynchronous=False)
        self._parts.clear()
        self._bytes = 0
        self._asked = None
        closing = threading.Thread(target=client.close, name="kafka-close", daemon=True)
        closing.start()  # it may never return, when the cluster is away
        closing.join(_CLOSE_S)


def _size(records: Sequence[Any] | deque[Any]) -> int:
    """About how many bytes records take."""
    return sum(map(len, records)) + len(records) * RECORD_BYTES
