"""Publishing batches to streams, and the registry of topics.

Invariant: a message is in its stream or its failure has been answered; a batch goes in pipelines, so a refused message
never holds up another. XADD says NOMKSTREAM, and a nil reply means that there is no such topic.

Cost: one round trip per 500 messages or 16 MiB and server. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from redis.exceptions import MovedError

from retry_topic.brokers.protocol import InDoubt
from retry_topic.brokers.redis_streams import faults, scripts
from retry_topic.brokers.redis_streams.connections import tag_of
from retry_topic.brokers.redis_streams.packing import REGISTRY, Parcel, in_parts, pack, pack_fields, unknown_topic
from wheel_sched.errors import BrokerError, BrokerUnavailable
from wheel_sched.store.redis.durability import OURS

if TYPE_CHECKING:
    from retry_topic.brokers.protocol import PublishFailure
    from retry_topic.brokers.redis_streams.connections import Connections
    from retry_topic.message import Message

Answers = list["PublishFailure | None"]


class Publisher:
    """Sends messages to topics; see `RedisStreamsBroker` for the arguments."""

    def __init__(self, connections: Connections, prefix: str, create_topics: bool) -> None:
        self.prefix = prefix
        self.create_topics = create_topics
        self.registry = prefix + REGISTRY
        self._connections = connections
        self._registered: set[str] = set()  # spares one SADD per batch

    def stream_key(self, topic: str) -> str:
        """The key of the stream that holds `topic`."""
        return self.prefix + topic

    def register(self, topics: Iterable[str]) -> None:
        """Add topics to the registry, once each.

        Raises:
            BrokerError: that failed, or is in doubt; a message comes later.
        """
        fresh = set(topics) - self._registered
        if fresh:
            try:
                self._connections.written(self.registry, "SADD", self.registry, *fresh)
            except InDoubt as error:
                raise BrokerUnavailable(f"the list of topics is in doubt: {error}; no message was sent") from error
            self._registered |= fresh

    def forget(self, topic: str) -> None:
        """Register `topic` again the next time, whatever is remembered here."""
        self._registered.discard(topic)

    def publish(self, messages: Sequence[Message]) -> Answers:
        """Append each message to its topic; raises BrokerUnavailable when not one of them got an answer."""
        return self._publish([pack(index, message) for index, message in enumerate(messages)])

    def publish_once(self, message: Message, message_id: str, window_ms: int) -> PublishFailure | None:
        """Append the message unless one of this id was appended to its topic within `window_ms`."""
        packed = pack(0, message)
        if not isinstance(packed, Parcel):
            return packed
        stream = self.stream_key(packed.topic)
        mark = f"{{{tag_of(stream)}}}:{OURS}sent:{len(message_id)}:{message_id}:{stream}"
        try:
            if self.create_topics:
                self.register([packed.topic])
            answer = scripts.publish_once(self._connections, stream, mark, self.create_topics, window_ms, packed.fields)
        except (*faults.FAULTS, InDoubt) as error:
            return faults.publish_failure(error)
        if answer == b"done":
            return None
        return (
            unknown_topic(packed.topic)
            if answer == b"unknown"
            else faults.publish_failure(answer.decode("utf-8", "replace"))
        )

    def publish_fields(self, entries: Sequence[tuple[str, list[bytes]]]) -> Answers:
        """`publish` of (topic, flat field list) pairs."""
        return self._publish([pack_fields(index, *entry) for index, entry in enumerate(entries)])

    def _publish(self, packed: Sequence[Parcel | PublishFailure]) -> Answers:
        answers: Answers = [None if isinstance(one, Parcel) else one for one in packed]
        parcels = [one for one in packed if isinstance(one, Parcel)]
        if self.create_topics:
            self.register(parcel.topic for parcel in parcels)
        outages: dict[int, Exception] = {}
        for _ in range(2):  # once more for what a Cluster has redirected
            redirected: list[Parcel] = []
            for share in self._by_server(parcels, answers, outages):
                for part in in_parts(share):
                    redirected += self._send(part, answers, outages)
            parcels = redirected
        if outages and len(outages) == len(packed):
            told = [
                (one if isinstance(one, BrokerError) else faults.broker_error(one, "message"), one)
                for one in outages.values()
            ]
            error, cause = next((pair for pair in told if pair[0].in_doubt), told[0])
            if error is cause:
                raise error
            raise error from cause
        return answers

    def _by_server(self, parcels: list[Parcel], answers: Answers, outages: dict[int, Exception]) -> list[list[Parcel]]:
        shares: dict[str, list[Parcel]] = {}
        for parcel in parcels:
            try:
                shares.setdefault(self._connections.node(self.stream_key(parcel.topic)), []).append(parcel)
            except faults.FAULTS as error:
                answers[parcel.index] = faults.publish_failure(error)
                outages[parcel.index] = error
        return list(shares.values())

    def _send(self, part: list[Parcel], answers: Answers, outages: dict[int, Exception]) -> list[Parcel]:
        """Send one pipeline; what a Cluster redirected, and so did not execute."""
        option = () if self.create_topics else ("NOMKSTREAM",)
        commands = [("XADD", self.stream_key(parcel.topic), *option, "*", *parcel.fields) for parcel in part]
        try:
            replies = self._connections.write(self.stream_key(part[0].topic), commands)
        except (*faults.FAULTS, BrokerError) as error:
            failure = faults.publish_failure(error)
            for parcel in part:
                answers[parcel.index] = failure
                if isinstance(error, BrokerError) or faults.is_lost(error):
                    outages[parcel.index] = error
            return []
        redirected = []
        for parcel, reply in zip(part, replies, strict=True):
            if reply is None:
                answers[parcel.index] = unknown_topic(parcel.topic)
            elif isinstance(reply, Exception):
                answers[parcel.index] = faults.publish_failure(reply)
                if isinstance(reply, MovedError):
                    self._connections.moved()
                    redirected.append(parcel)
            else:
                answers[parcel.index] = None
        return redirected
