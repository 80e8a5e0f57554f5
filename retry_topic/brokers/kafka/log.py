"""A member of a group that reads whole partitions in order, from positions that somebody else keeps.

What is read is cut into slices of one partition. Where a partition begins, the keeper of its position says: the offsets
that are committed serve only those who look how far the group is. A member that lost a partition may still hold a slice
of it: the keeper refuses that, since the position has moved on.

Kafka's own account of who may commit is so not needed for exactness; the store's fence does it (see `Position`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from retry_topic.brokers.kafka.faults import EXPELLED, broker_error
from retry_topic.brokers.kafka.groups import Groups
from retry_topic.brokers.kafka.records import from_record
from retry_topic.brokers.kafka.topology import Topology
from retry_topic.brokers.protocol import Delivery, PositionsOf, Slice
from retry_topic.names import source_of
from wheel_sched.errors import BrokerUnavailable

logger = logging.getLogger("retry_topic.kafka")

_FULL, _LOW = 4_000, 1_000  # records in the buffers at which fetching pauses, and goes on
_AT_ONCE = 2_000
_TELL_S = 0.5
_CLOSE_S = 5.0


class _Part:
    """One partition: its buffer, and how far it was cut."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.buffer: deque[Any] = deque()  # confluent-kafka's records
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
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        group: str,
        topology: Topology,
        groups: Groups,
        positions: PositionsOf,
    ) -> None:
        self._settings = {**settings, "on_commit": self._told}
        self._topic = topic
        self._positions = positions
        self._groups = groups
        self._failure: Exception | None = None
        self._name = partial(source_of, group, topology.topic_id(topic))
        self._parts: dict[int, _Part] = {}
        self._client: Any = None
        self._expelled = False
        self._paused = False
        self._tell_s = 0.0
        self._closed = False

    def __repr__(self) -> str:
        return f"<KafkaLog {self._topic} partitions={sorted(self._parts)}>"

    def expected(self) -> dict[str, int]:
        """See `LogReader`."""
        return {self._source(part): part.expected for part in self._parts.values() if part.expected is not None}

    def rewind(self, source: str, position: int | None) -> None:
        """See `LogReader`.

        Raises:
            BrokerUnavailable: the partition could not be read from there; nothing was changed.
        """
        part = self._parts.get(int(source.rpartition("/")[2]))
        if part is None or self._client is None:
            return  # lost meanwhile
        # a store that has lost all it knew of the partition is given again what this member brought it
        offset = part.began if position is None else position
        try:
            self._client.seek(TopicPartition(self._topic, part.number, -2 if offset is None else offset))
        except KafkaException as error:
            raise broker_error(error, f"{source} could not be read from {offset}") from error
        part.buffer.clear()
        part.expected = position

    def poll(self, limit: int, timeout_ms: int) -> Slice | None:
        """See `LogReader`.

        Raises:
            BrokerUnavailable: the cluster does not answer.
        """
        part = self._fullest()
        if part is None or len(part.buffer) < limit:
            self._fetch(0.0 if part is not None else timeout_ms / 1000)
            part = self._fullest()
        self._tell()
        if part is None:
            return None
        records = [part.buffer.popleft() for _ in range(min(limit, len(part.buffer)))]
        behind = records[-1].offset() + 1
        records.reverse()
        expected, part.expected = part.expected, behind
        return Slice(self._source(part), expected, behind, _deliveries(records))

    def done(self, part: Slice) -> None:
        """See `LogReader`."""
        known = self._parts.get(int(part.source.rpartition("/")[2]))
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

    def _source(self, part: _Part) -> str:
        return self._name(part.number)

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
            self._expelled = self._paused = False
            self._client = Consumer(self._settings)
            self._client.subscribe(
                [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
            )
        until_s = time.monotonic() + timeout_s
        while True:
            known = len(self._parts)
            record = self._client.poll(max(0.0, min(0.1, until_s - time.monotonic())))
            if record is not None:
                self._keep([record, *self._client.consume(_AT_ONCE, 0)])
                break
            if len(self._parts) != known or self._expelled or time.monotonic() >= until_s:
                break
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        count = sum(len(part.buffer) for part in self._parts.values())
        if not self._paused and count >= _FULL:
            self._client.pause(self._client.assignment())
            self._paused = True
        elif self._paused and count <= _LOW:
            self._client.resume(self._client.assignment())
            self._paused = False

    def _keep(self, records: Sequence[Any]) -> None:
        for record in records:
            error = record.error()
            if error is None:
                part = self._parts.get(record.partition())
                if part is not None:
                    part.buffer.append(record)
            elif error.code() in EXPELLED:
                self._expelled = True
            elif error.fatal():
                self._expelled = True
                raise broker_error(KafkaException(error), "reading failed")

    def _assigned(self, client: Any, partitions: list[TopicPartition]) -> None:
        parts = [_Part(place.partition) for place in partitions]
        try:
            positions = self._positions([self._source(part) for part in parts])
            known = self._groups.places(self._settings["group.id"], partitions)
        except Exception as error:  # what is raised in here, librdkafka would not know what to do with
            self._failure, self._expelled = error, True
            return
        committed = {place.partition: place.offset for place in known}
        places = []
        for part, position in zip(parts, positions, strict=True):
            part.expected = position
            offset = committed.get(part.number, -1) if position is None else position
            part.began = offset if offset >= 0 else None
            places.append(TopicPartition(self._topic, part.number, offset if offset >= 0 else -2))
            self._parts[part.number] = part
        client.incremental_assign(places)
        if self._paused:
            client.pause(places)

    def _revoked(self, client: Any, partitions: list[TopicPartition]) -> None:
        self._tell(now=True)
        for place in partitions:
            self._parts.pop(place.partition, None)

    def _tell(self, *, now: bool = False) -> None:
        """Commit how far the slices are kept, for those who look."""
        if not now and time.monotonic() < self._tell_s:
            return
        self._tell_s = time.monotonic() + _TELL_S
        offsets = [
            TopicPartition(self._topic, part.number, part.done)
            for part in self._parts.values()
            if part.done is not None
        ]
        if offsets and self._client is not None:
            with contextlib.suppress(KafkaException):
                self._client.commit(offsets=offsets, asynchronous=not now)
            for part in self._parts.values():
                part.done = None

    def _told(self, error: Any, _: Any) -> None:
        if error is not None and error.code() in EXPELLED:
            self._expelled = True

    def _leave(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(KafkaException):
            offsets = [
                TopicPartition(self._topic, part.number, part.done)
                for part in self._parts.values()
                if part.done is not None
            ]
            if offsets and not self._expelled:
                client.commit(offsets=offsets, asynchronous=False)
        self._parts.clear()
        closing = threading.Thread(target=client.close, name="kafka-close", daemon=True)
        closing.start()  # it may never return, when the cluster is away
        closing.join(_CLOSE_S)
