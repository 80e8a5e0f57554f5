"""Settling deliveries: XACK, publish-and-settle, and trimming entries that every group has settled.

`forward` runs one script per slot. The script publishes a message only if the group has not settled its delivery. So
a repetition after a lost reply publishes nothing twice. If source and target are on different slots of a Cluster,
`forward` publishes first and settles after. It remembers deliveries that it published and could not settle; a
repetition only settles them.

Threads: one thread settles. The polling thread may call `trim`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from retry_topic.brokers.protocol import Delivery, PublishFailure
from retry_topic.brokers.redis_streams import faults, scripts
from retry_topic.brokers.redis_streams.connections import Connections
from retry_topic.brokers.redis_streams.publisher import (
    Answers,
    PreparedEntry,
    StreamPublisher,
    in_parts,
    pack,
    unknown_topic,
)
from retry_topic.message import Message
from wheel_sched.errors import BrokerError

TRIM_EVERY = 100  # settled entries; a stream's node holds 100
FORWARD_AT_ONCE = 100  # pairs in one script: about a millisecond of the server's time

Handle = tuple[str, bytes]  # stream and entry id


def by_stream(deliveries: Iterable[Delivery]) -> dict[str, list[bytes]]:
    """The entry ids of deliveries, by stream."""
    ids: dict[str, list[bytes]] = {}
    for delivery in deliveries:
        stream, entry_id = delivery.handle
        ids.setdefault(stream, []).append(entry_id)
    return ids


class StreamSettler:
    """Settles the deliveries of one member of `group`."""

    def __init__(self, connections: Connections, publisher: StreamPublisher, group: str, maxlen: int | None) -> None:
        self._connections = connections
        self._publisher = publisher
        self._group = group
        self._maxlen = maxlen
        self._settled: dict[str, int] = {}  # by stream, since the last trim
        self._published: set[Handle] = set()  # forwarded across slots, not settled yet

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Settle deliveries. Repeating it is harmless, also after an error."""
        for stream, ids in by_stream(deliveries).items():
            self._ack(stream, ids)
            self._count(stream, len(ids))

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> Answers:
        """Publish each message and settle its delivery, in one step if both keys are on one slot."""
        answers: Answers = [None] * len(pairs)
        together: dict[int, list[PreparedEntry]] = {}
        apart: list[int] = []
        for index, (delivery, message) in enumerate(pairs):
            packed = pack(index, message)
            if not isinstance(packed, PreparedEntry):
                answers[index] = packed
                continue
            slot = self._connections.slot(delivery.handle[0])
            if slot == self._connections.slot(self._publisher.stream_key(message.topic)):
                together.setdefault(slot, []).append(packed)
            else:
                apart.append(index)
        for prepared in together.values():
            for part in in_parts(prepared, FORWARD_AT_ONCE):
                self._in_one_step(part, pairs, answers)
        if apart:
            self._in_two_steps(apart, pairs, answers)
        return answers

    def trim(self) -> None:
        """Trim the streams that have newly settled entries since the last trim."""
        for stream in list(self._settled):
            self._trim(stream)

    def _ack(self, stream: str, ids: list[bytes]) -> None:
        self._connections.written(stream, "XACK", stream, self._group, *ids)

    def _in_one_step(
        self, part: list[PreparedEntry], pairs: Sequence[tuple[Delivery, Message]], answers: Answers
    ) -> None:
        create = self._publisher.create_topics
        handles: list[Handle] = [pairs[entry.index][0].handle for entry in part]
        moves = [
            scripts.Move(stream, entry_id, self._publisher.stream_key(entry.topic), entry.fields)
            for (stream, entry_id), entry in zip(handles, part, strict=True)
        ]
        try:
            if create:
                self._publisher.register(entry.topic for entry in part)
            replies = scripts.forward(self._connections, self._group, create, moves)
        except (*faults.FAULTS, BrokerError) as error:
            failure = faults.publish_failure(error)
            for entry in part:
                answers[entry.index] = failure
            return
        for entry, (stream, _), reply in zip(part, handles, replies, strict=True):
            if reply == b"done":
                self._count(stream, 1)
            elif reply == b"unknown":
                answers[entry.index] = unknown_topic(entry.topic)
            else:
                answers[entry.index] = faults.publish_failure(reply.decode("utf-8", "replace"))

    def _in_two_steps(self, indexes: list[int], pairs: Sequence[tuple[Delivery, Message]], answers: Answers) -> None:
        fresh = [index for index in indexes if pairs[index][0].handle not in self._published]
        try:
            published = self._publisher.publish([pairs[index][1] for index in fresh])
        except BrokerError as error:
            published = [faults.publish_failure(error)] * len(fresh)
        for index, failure in zip(fresh, published, strict=True):
            answers[index] = failure
            if failure is None:
                self._published.add(pairs[index][0].handle)
        done = [index for index in indexes if answers[index] is None]
        try:
            self.ack(pairs[index][0] for index in done)
        except BrokerError as error:
            reason = f"published, but not settled; repeat it, it will not be published again ({error})"
            for index in done:
                answers[index] = PublishFailure(reason[: faults.REASON_CHARACTERS], in_doubt=True)
        else:
            self._published.difference_update(pairs[index][0].handle for index in done)

    def _count(self, stream: str, settled: int) -> None:
        if self._maxlen is not None:
            count = self._settled.get(stream, 0) + settled
            self._settled[stream] = count
            if count >= TRIM_EVERY:  # not read again: the polling thread may have trimmed meanwhile
                self._trim(stream)

    def _trim(self, stream: str) -> None:
        keep = self._maxlen
        if self._settled.pop(stream, 0) and keep is not None:
            with contextlib.suppress(BrokerError):  # settled entries stay settled, and a later call trims
                self._connections.repeatable(stream, lambda client: scripts.trim(client, stream, keep))
