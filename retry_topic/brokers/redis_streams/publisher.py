"""Writes to streams: publishes batches, settles deliveries, trims streams, registers topics.

`StreamPublisher`: each message is either in its stream, or the caller gets its failure. A batch is sent in
pipelines, so a refused message does not stop the others. A pipeline holds messages for one server: at most 500, and at
most 16 MiB unless one message alone is larger. Cost: one round trip for each pipeline. If publishing must not create
topics, XADD has the option NOMKSTREAM; then a nil reply means an unknown topic. Any thread may call any method.

`StreamSettler` settles the deliveries of one member. One thread settles; the polling thread may call `trim`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from redis.exceptions import MovedError

from retry_topic.brokers.protocol import BrokerInDoubt, Delivery, PublishFailure
from retry_topic.brokers.redis_streams import faults, scripts
from retry_topic.brokers.redis_streams.connections import Connections, tag_of
from retry_topic.message import Message
from retry_topic.message.encoding import to_fields
from wheel_sched.errors import BrokerError, BrokerUnavailable
from wheel_sched.store.redis.durability import OURS

Answers = list[PublishFailure | None]
Handle = tuple[str, bytes]  # stream and entry id of a delivery

STORE_KEY = re.compile(r"\{[^{}]*:[0-9]+\}:")  # the beginning of every key of a delay store
REGISTRY = "topics"  # the key of the set of known topics, so no topic can have this name
MAX_FIELDS = 3_500  # fields and values of one entry: a script unpacks at most about 8,000 arguments
MAX_BYTES = 512 * 1024 * 1024  # proto-max-bulk-len: the server closes the connection on a larger value
PIPELINE_MESSAGES = 500
PIPELINE_BYTES = 16 * 1024 * 1024
TRIM_EVERY = 100  # a stream is trimmed after this many settled entries; a stream's node holds 100
FORWARD_AT_ONCE = 100  # pairs in one script: about a millisecond of the server's time


@dataclass(frozen=True, slots=True)
class PreparedEntry:
    """A message ready to send: its index in the batch, its topic, the fields of its entry and their size."""

    index: int
    topic: str
    fields: list[bytes]
    size_bytes: int


def topic_problem(topic: str) -> str | None:
    """Why `topic` cannot be the name of a topic; None if it can."""
    if not isinstance(topic, str) or not topic or topic == REGISTRY:
        return f"expected topic to be a non-empty name other than {REGISTRY!r} (the registry of topics), got: {topic!r}"
    if STORE_KEY.match(topic):
        return f"expected topic not to begin like a delay store's keys ({{namespace:shard}}:...), got: {topic!r}"
    if OURS in topic:
        return f"expected topic to be a name without {OURS!r} (wheel-sched's own keys contain it), got: {topic!r}"
    try:
        topic.encode()
    except UnicodeEncodeError:
        return f"expected topic to be text, got one with an unpaired surrogate: {topic!r}"
    return None


def unknown_topic(topic: str) -> PublishFailure:
    """The failure of a message whose stream does not exist."""
    return _never(f"unknown topic {topic!r}: nothing was sent; create it, or allow create_topics")


def pack(index: int, message: Message) -> PreparedEntry | PublishFailure:
    """The prepared entry of a message, or why the message can never be published."""
    try:
        fields = to_fields(message)
    except UnicodeEncodeError as error:
        return _never(f"the name of a header is not text ({error}): nothing was sent")
    return pack_fields(index, message.topic, fields)


def pack_fields(index: int, topic: str, fields: list[bytes]) -> PreparedEntry | PublishFailure:
    """The prepared entry of a flat list of fields and values, or why it can never be published."""
    problem = topic_problem(topic)
    if problem:
        return _never(problem)
    if len(fields) > MAX_FIELDS:
        return _never(f"too many headers ({len(fields) // 2}, at most {MAX_FIELDS // 2 - 2}): nothing was sent")
    size_bytes = sum(map(len, fields))
    if size_bytes > MAX_BYTES:
        return _never(f"too large ({size_bytes} bytes, at most {MAX_BYTES}): nothing was sent")
    return PreparedEntry(index, topic, fields, size_bytes)


def in_parts(prepared: Iterable[PreparedEntry], at_most: int = PIPELINE_MESSAGES) -> Iterator[list[PreparedEntry]]:
    """Split entries into parts of bounded count and size, so that a pipeline never holds too much memory."""
    part: list[PreparedEntry] = []
    size_bytes = 0
    for entry in prepared:
        if part and (len(part) == at_most or size_bytes + entry.size_bytes > PIPELINE_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(entry)
        size_bytes += entry.size_bytes
    if part:
        yield part


def _never(reason: str) -> PublishFailure:
    return PublishFailure(reason[: faults.REASON_CHARACTERS], transient=False)


class StreamPublisher:
    """Sends messages to topics; see `RedisStreamsBroker` for the arguments."""

    def __init__(self, connections: Connections, prefix: str, create_topics: bool) -> None:
        self.prefix = prefix
        self.create_topics = create_topics
        self.registry = prefix + REGISTRY
        self._connections = connections
        self._registered: set[str] = set()  # saves one SADD per batch

    def stream_key(self, topic: str) -> str:
        """The key of the stream that holds `topic`."""
        return self.prefix + topic

    def register(self, topics: Iterable[str]) -> None:
        """Add topics to the registry, the set of known topics, once each.

        Raises:
            BrokerError: adding failed or is in doubt. No message was sent.
        """
        fresh = set(topics) - self._registered
        if fresh:
            try:
                self._connections.written(self.registry, "SADD", self.registry, *fresh)
            except BrokerInDoubt as error:
                raise BrokerUnavailable(f"the list of topics is in doubt: {error}; no message was sent") from error
            self._registered |= fresh

    def forget(self, topic: str) -> None:
        """Forget that `topic` is registered, so that the next `register` writes it again."""
        self._registered.discard(topic)

    def publish(self, messages: Sequence[Message]) -> Answers:
        """Append each message to its topic. Raises BrokerUnavailable when no message got an answer."""
        return self._publish([pack(index, message) for index, message in enumerate(messages)])

    def publish_once(self, message: Message, message_id: str, window_ms: int) -> PublishFailure | None:
        """Append the message unless its topic got one with this id within `window_ms`. Returns its failure or None."""
        packed = pack(0, message)
        if not isinstance(packed, PreparedEntry):
            return packed
        stream = self.stream_key(packed.topic)
        mark = f"{{{tag_of(stream)}}}:{OURS}sent:{len(message_id)}:{message_id}:{stream}"
        try:
            if self.create_topics:
                self.register([packed.topic])
            answer = scripts.publish_once(self._connections, stream, mark, self.create_topics, window_ms, packed.fields)
        except (*faults.FAULTS, BrokerInDoubt) as error:
            return faults.publish_failure(error)
        if answer == b"done":
            return None
        return (
            unknown_topic(packed.topic)
            if answer == b"unknown"
            else faults.publish_failure(answer.decode("utf-8", "replace"))
        )

    def publish_fields(self, entries: Sequence[tuple[str, list[bytes]]]) -> Answers:
        """Publish pairs of a topic and a flat list of fields and values, as `publish` does."""
        return self._publish([pack_fields(index, *entry) for index, entry in enumerate(entries)])

    def _publish(self, packed: Sequence[PreparedEntry | PublishFailure]) -> Answers:
        answers: Answers = [None if isinstance(one, PreparedEntry) else one for one in packed]
        prepared = [one for one in packed if isinstance(one, PreparedEntry)]
        if self.create_topics:
            self.register(entry.topic for entry in prepared)
        outages: dict[int, Exception] = {}
        for _ in range(2):  # the second time for entries that a Cluster has redirected
            redirected: list[PreparedEntry] = []
            for share in self._by_server(prepared, answers, outages):
                for part in in_parts(share):
                    redirected += self._send(part, answers, outages)
            prepared = redirected
        if outages and len(outages) == len(packed):
            translated = [
                (one if isinstance(one, BrokerError) else faults.broker_error(one, "message"), one)
                for one in outages.values()
            ]
            error, cause = next((pair for pair in translated if pair[0].in_doubt), translated[0])
            if error is cause:
                raise error
            raise error from cause
        return answers

    def _by_server(
        self, prepared: list[PreparedEntry], answers: Answers, outages: dict[int, Exception]
    ) -> list[list[PreparedEntry]]:
        shares: dict[str, list[PreparedEntry]] = {}
        for entry in prepared:
            try:
                shares.setdefault(self._connections.node(self.stream_key(entry.topic)), []).append(entry)
            except faults.FAULTS as error:
                answers[entry.index] = faults.publish_failure(error)
                outages[entry.index] = error
        return list(shares.values())

    def _send(self, part: list[PreparedEntry], answers: Answers, outages: dict[int, Exception]) -> list[PreparedEntry]:
        """Send one pipeline. Returns the entries that a Cluster redirected instead of executing them."""
        option = () if self.create_topics else ("NOMKSTREAM",)
        commands = [("XADD", self.stream_key(entry.topic), *option, "*", *entry.fields) for entry in part]
        try:
            replies = self._connections.write(self.stream_key(part[0].topic), commands)
        except (*faults.FAULTS, BrokerError) as error:
            failure = faults.publish_failure(error)
            for entry in part:
                answers[entry.index] = failure
                if isinstance(error, BrokerError) or faults.is_lost(error):
                    outages[entry.index] = error
            return []
        redirected = []
        for entry, reply in zip(part, replies, strict=True):
            if reply is None:
                answers[entry.index] = unknown_topic(entry.topic)
            elif isinstance(reply, Exception):
                answers[entry.index] = faults.publish_failure(reply)
                if isinstance(reply, MovedError):
                    self._connections.moved()
                    redirected.append(entry)
            else:
                answers[entry.index] = None
        return redirected


def by_stream(deliveries: Iterable[Delivery]) -> dict[str, list[bytes]]:
    """The entry ids of deliveries, by stream."""
    ids: dict[str, list[bytes]] = {}
    for delivery in deliveries:
        stream, entry_id = delivery.handle
        ids.setdefault(stream, []).append(entry_id)
    return ids


class StreamSettler:
    """Settles the deliveries of one member of `group`, forwards messages, and trims the streams.

    `forward` runs one script for up to 100 pairs of one slot. The script publishes a message only if the group has not
    settled its delivery. So a repetition after a lost reply publishes nothing twice. If source and target are on
    different slots of a Cluster, `forward` publishes first and settles afterwards. If it cannot settle a delivery whose
    message it has published, it remembers the delivery. A repetition then only settles this delivery.
    """

    def __init__(self, connections: Connections, publisher: StreamPublisher, group: str, maxlen: int | None) -> None:
        self._connections = connections
        self._publisher = publisher
        self._group = group
        self._maxlen = maxlen
        self._settled: dict[str, int] = {}  # for each stream: the number of entries settled since the last trim
        self._published: set[Handle] = set()  # deliveries that were forwarded across slots and are not settled yet

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Settle deliveries. Repeating the call is harmless, also after an error."""
        for stream, ids in by_stream(deliveries).items():
            self._ack(stream, ids)
            self._count(stream, len(ids))

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> Answers:
        """Publish each message and settle its delivery, in one step if source and target stream are on one slot."""
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
            if count >= TRIM_EVERY:  # `count`, because another thread's trim may have removed the dict's entry
                self._trim(stream)

    def _trim(self, stream: str) -> None:
        keep = self._maxlen
        if self._settled.pop(stream, 0) and keep is not None:
            with contextlib.suppress(BrokerError):  # settled entries stay settled, and a later call trims
                self._connections.repeatable(stream, lambda client: scripts.trim(client, stream, keep))
