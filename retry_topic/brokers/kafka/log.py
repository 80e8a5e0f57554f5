"""KafkaLog: a group member that reads whole partitions in order. The delay store keeps the positions.

`poll` hands out batches of one partition. The store says where to begin in a partition. If the store has no position
for a partition, the member begins at the group's committed offset. Apart from that, the committed offsets only show the
group's progress to Kafka's tools. A member that has lost a partition may still hold a batch of it. The store refuses
that batch, because the store has a later position by then. So each record is stored once, whoever may commit offsets in
Kafka.

A topic may be deleted and recreated while a member reads it. The partitions of the new topic are new sources, read from
their beginning. The client does not report when it starts to read the new log. So this class reads the topic's id when
partitions are assigned, and again after records were read. It hands out the records if the id is still the same. One
request for the id confirms all records that were read before the request, and reading continues meanwhile. Offsets are
committed with the id, so that offsets of a deleted topic are not used for its successor.
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

from retry_topic.brokers.kafka.faults import EXPELLED, TOPIC_GONE, UNANSWERED, broker_error
from retry_topic.brokers.kafka.groups import Groups
from retry_topic.brokers.kafka.offset_tracker import RECORD_BYTES
from retry_topic.brokers.kafka.poll_loop import PausedPartitions
from retry_topic.brokers.kafka.records import from_record
from retry_topic.brokers.kafka.topology import Topology
from retry_topic.brokers.protocol import Delivery, LogBatch, PositionsOf
from retry_topic.message.topic_names import source_of
from wheel_sched.errors import BrokerError, BrokerUnavailable
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.kafka")

_FULL, _LOW = 4_000, 1_000  # fetching pauses at _FULL records in the buffers and resumes at _LOW
_AT_ONCE, _PARTS = 500, 4  # records taken from the client before their size is checked; how often in a row
_COMMIT_EVERY_S = 0.5
_ASK_S = 0.01  # the shortest time between two requests for the topic's id while records come
_ASK_IDLE_S = 1.0  # the same while no record comes: the log of a recreated topic may end where the reader stands
_CLOSE_S = 5.0


class _Part:
    """One partition: its buffer, and the position up to which its records were handed out."""

    def __init__(self, number: int, source: str) -> None:
        self.number = number
        self.source = source
        self.buffer: deque[Any] = deque()  # confluent-kafka's records
        self.unsure: list[Any] = []  # records that may belong to a recreated topic
        self.asked_for: list[Any] = []  # records that the pending request will confirm
        self.began: int | None = None
        self.expected: int | None = None
        self.done: int | None = None


def _deliveries(records: list[Any]) -> Iterator[Delivery]:
    """Iterate over `records` from last to first. A record leaves the list as soon as it is read. Otherwise Python's
    garbage collector would scan the objects of many live records again and again."""
    while records:
        yield Delivery(from_record(records.pop()), None)


class KafkaLog:
    """Implements `LogReader`; made by `KafkaBroker.log_reader`. Only one thread may use it.

    Args:
        settings: librdkafka's settings of a group member.
        topic: the topic to read.
        group: the consumer group.
        topology: reads the topic's id.
        groups: reads the group's committed offsets.
        positions: gives the position to begin at for each source. It may take long, and may raise.
        full_bytes: the size of the buffers at which fetching pauses.
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
        self._settings = {**settings, "on_commit": self._on_commit}
        self._topic = topic
        self._group = group
        self._topology = topology
        self._positions = positions
        self._groups = groups
        self._full_bytes = full_bytes
        self._failure: Exception | None = None
        self._topic_id = ""  # the id of the topic whose partitions this member has
        self._asked: Any = None  # the pending request for the id
        self._ask_s = 0.0
        self._parts: dict[int, _Part] = {}
        self._bytes = 0  # about how many bytes are in the buffers
        self._client: Any = None
        self._expelled = False
        self._paused = PausedPartitions()
        self._warned: set[int] = set()
        self._commit_at_s = 0.0
        self.closed = False

    def __repr__(self) -> str:
        return f"<KafkaLog {self._topic} partitions={sorted(self._parts)}>"

    def expected(self) -> dict[str, int]:
        """The position of each partition's next batch, if it is known, by source (the store's name of the
        partition)."""
        return {part.source: part.expected for part in self._parts.values() if part.expected is not None}

    def rewind(self, source: str, position: int | None) -> None:
        """Read the partition `source` again from `position`; None: from where this member began to read it.

        Raises:
            BrokerUnavailable: the partition could not be read from that position. Nothing was changed.
        """
        part = self._part(source)
        if part is None or self._client is None:
            return  # the partition was lost meanwhile
        # None: the store has lost the partition's position, so it needs all records of this member again
        offset = part.began if position is None else position
        try:
            self._client.seek(TopicPartition(self._topic, part.number, -2 if offset is None else offset))
        except KafkaException as error:
            raise broker_error(error, f"{source} could not be read from {offset}") from error
        self._empty(part)
        part.expected = position

    def poll(self, limit: int, timeout_ms: int) -> LogBatch | None:
        """The next records of one partition; None if none came. Waits up to `timeout_ms` for them.

        Raises:
            BrokerUnavailable: the cluster does not answer.
            BrokerError: the cluster refuses this client. If a permission is missing, the text names it.
        """
        part = self._fullest()
        if part is None or len(part.buffer) < limit or sum(len(one.buffer) for one in self._parts.values()) < _LOW:
            self._fetch(0.0 if part is not None else timeout_ms / 1000)
            part = self._fullest()
        self._commit_done()
        if part is None:
            return None
        records = [part.buffer.popleft() for _ in range(min(limit, len(part.buffer)))]
        self._bytes -= _size(records)
        behind = records[-1].offset() + 1
        records.reverse()
        expected, part.expected = part.expected, behind
        return LogBatch(part.source, expected, behind, _deliveries(records))

    def done(self, part: LogBatch) -> None:
        """Note that a batch is stored. A later poll commits the position after it."""
        known = self._part(part.source)
        if known is not None:
            known.done = part.next

    def beat(self) -> None:
        """Stay a member of the group between polls: fetch without waiting."""
        self._fetch(0.0)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        if self.closed:
            return
        self.closed = True
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
        if self.closed:
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
        """Pause fetching while the buffers are full: back-pressure without leaving the group. After a pause, the client
        needs half a second until it fetches again."""
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
            elif error.code() not in self._warned:  # the client retries by itself
                self._warned.add(error.code())
                logger.warning("kafka.nothing_read: %s: %s", self._topic, error.str())

    def _make_sure(self) -> None:
        """Ask the cluster whether the topic still has its id.

        If the id is the same, the records that were read before the request may be handed out.
        """
        parts = self._parts.values()
        if self._asked is not None:
            if not self._asked.done():
                return
            asked, self._asked = self._asked, None
            try:
                topic_id = self._topology.answered_id(self._topic, asked)
            except BrokerError:  # the topic is deleted, or the cluster does not answer: ask again later
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
        """Drop the records that were not handed out and join again. The store's positions say where to continue."""
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
            if (
                self._parts and topic_id != self._topic_id
            ):  # the earlier partitions belong to another topic with this name
                self._begin_anew()
                return
            self._topic_id = topic_id
            parts = [
                _Part(place.partition, source_of(self._group, self._topic_id, place.partition)) for place in partitions
            ]
            positions = self._positions([part.source for part in parts])
            known = self._groups.places(self._settings["group.id"], partitions)
        except Exception as error:  # librdkafka cannot handle an exception from this callback
            self._failure, self._expelled = error, True
            return
        # earlier releases committed no id
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
        if client is not self._client:  # this client was replaced, and closes late
            return
        self._commit_done(now=True)
        self._paused.lose((self._topic, place.partition) for place in partitions)
        for place in partitions:
            part = self._parts.pop(place.partition, None)
            if part is not None:
                self._empty(part)

    def _commit_done(self, *, now: bool = False) -> None:
        """Commit the positions up to which batches are stored, so that Kafka's tools show the progress.

        `now`: commit immediately and wait for it. Otherwise commit at most every half second, without waiting.
        """
        if not now and time.monotonic() < self._commit_at_s:
            return
        self._commit_at_s = time.monotonic() + _COMMIT_EVERY_S
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

    def _on_commit(self, error: Any, _: Any) -> None:
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
        closing.start()  # it may never return when the cluster does not answer
        closing.join(_CLOSE_S)


def _size(records: Sequence[Any] | deque[Any]) -> int:
    """About how many bytes the records take in memory."""
    return sum(map(len, records)) + len(records) * RECORD_BYTES
