"""The queue broker of a simulated world: a server that uses the memory broker, and a client for each process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from retry_topic.brokers.memory import MemoryBroker, MemoryConsumer
from retry_topic.brokers.protocol import Delivery, PublishFailure
from retry_topic.message import Message
from retry_topic.simulation.broker_faults import BrokerServer, call_broker
from wheel_sched.errors import BrokerUnavailable
from wheel_sched.simulation.calls import ConnectionRefused, Lost, once
from wheel_sched.simulation.scenario import Fault
from wheel_sched.simulation.world import World

T = TypeVar("T")


class QueueServer(BrokerServer):
    """The server of a queue broker. All processes share its topics."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.broker = MemoryBroker(monotonic_ms=self.monotonic_ms, wall_ms=self.wall_ms)

    def create(self, topic: str) -> None:
        """Create a topic when it is absent."""
        self.broker.create_topic(topic)

    def records(self, topic: str) -> list[Message]:
        """All records of a topic."""
        return self.broker.records(topic)

    def strike(self, fault: Fault) -> None:
        """Let a fault happen. The fault "redeliver" ends the leases of all deliveries."""
        if fault.kind != "redeliver":
            super().strike(fault)
            return
        with self.broker._changed:
            for topic in self.broker._topics.values():
                for group in topic.groups.values():
                    for lease in group.leases.values():
                        lease.since_ms = -(10**9)
        self.answer_waiting()

    def leased(self, topics: Sequence[str]) -> int:
        """How many records of these topics are leased: a consumer has read them and not settled them."""
        known = (self.broker._topics.get(name) for name in topics)
        return sum(len(group.leases) for topic in known if topic is not None for group in topic.groups.values())

    def unsettled(self, taken_in: Mapping[str, int]) -> dict[str, int]:
        """The number of records that a group has not settled, by topic. `taken_in` is for logs, and not used here."""
        found: dict[str, int] = {}
        for name, topic in self.broker._topics.items():
            for group in topic.groups.values():
                left = topic.end - group.position + len(group.leases)
                if left:
                    found[name] = found.get(name, 0) + left
        return found


class _Client:
    def __init__(self, world: World, server: QueueServer) -> None:
        self._world, self._server = world, server

    def _call(self, what: str, perform: Callable[[], T]) -> T:
        try:
            return call_broker(self._world, self._server, what, perform)
        except ConnectionRefused:
            raise BrokerUnavailable("the broker is away: nothing was done") from None
        except Lost:
            raise BrokerUnavailable("no reply", in_doubt=True) from None


class RemoteBroker(_Client):
    """The client with which one simulated process calls a `QueueServer`. Implements `Broker`."""

    name = "simulated"

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Publish messages. Returns an answer for each, as `Broker.publish`; all are in doubt if the reply was lost."""
        messages = list(messages)
        try:
            return self._call("publish", lambda: self._server.broker.publish(messages))
        except BrokerUnavailable as error:
            if not error.in_doubt:
                raise
            return [PublishFailure("no reply", in_doubt=True) for _ in messages]

    def publish_fields(self, entries: Sequence[tuple[str, list[bytes]]]) -> list[PublishFailure | None]:
        """Publish pairs of a topic and fields. Answers as `publish` does. Implements `FieldsBroker.publish_fields`."""
        entries = list(entries)
        try:
            return self._call("publish", lambda: self._server.broker.publish_fields(entries))
        except BrokerUnavailable as error:
            if not error.in_doubt:
                raise
            return [PublishFailure("no reply", in_doubt=True) for _ in entries]

    def publish_once(self, message: Message, message_id: str, window_ms: int) -> PublishFailure | None:
        """Publish a message, unless the topic got one with this id in the last `window_ms`.

        Implements `OnceBroker.publish_once`.
        """
        try:
            return self._call("publish", lambda: self._server.broker.publish_once(message, message_id, window_ms))
        except BrokerUnavailable as error:
            return PublishFailure(str(error), in_doubt=error.in_doubt)

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> RemoteConsumer:
        """Join a group on topics. Implements `Broker.consumer`."""
        inner = self._call("join", lambda: self._server.broker.consumer(topics, group, idle_ms=idle_ms))
        return RemoteConsumer(self._world, self._server, inner)

    def create_topic(self, topic: str) -> None:
        """Create a topic when it is absent. Implements `Broker.create_topic`."""
        self._call("create topic", lambda: self._server.broker.create_topic(topic))

    def topic_problem(self, topic: str) -> str | None:
        """Why a topic cannot have this name; None if it can. Implements `NamesBroker.topic_problem`."""
        return self._server.broker.topic_problem(topic)

    def topics(self) -> dict[str, int]:
        """The topics, and how many records each holds. Implements `Broker.topics`."""
        return self._call("topics", self._server.broker.topics)

    def reads(self, group: str, topic: str) -> bool:
        """Whether a group reads a topic. Implements `ReadersBroker.reads`."""
        return self._call("readers", lambda: self._server.broker.reads(group, topic))

    def trim(self, topic: str, keep: int) -> int:
        """Drop a topic's oldest settled records beyond `keep`. Implements `TrimBroker.trim`."""
        return self._call("trim", lambda: self._server.broker.trim(topic, keep))

    def close(self) -> None:
        """Do nothing, because this client holds no connection. Implements `Broker.close`."""


class RemoteConsumer(_Client):
    """A group member in a simulated process. Calls a consumer of the memory broker. Implements `BrokerConsumer`."""

    def __init__(self, world: World, server: QueueServer, inner: MemoryConsumer) -> None:
        super().__init__(world, server)
        self._inner = inner

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        """Up to `limit` deliveries. A poll that finds nothing does not call the server, so no fault strikes it.

        The request of a poll never arrives twice, because the product's client does not repeat it.
        """
        server, inner = self._server, self._inner
        if limit > 0 and not inner._closed and server.away_until_ns <= self._world.scheduler.now_ns:
            topics = [inner._broker._topics[name] for name in inner._topics]
            groups = [(topic, topic.groups[inner._group]) for topic in topics]
            now_ms = server.monotonic_ms()
            for _, group in groups:
                group.asked[inner._member] = now_ms

            def anything() -> bool:
                """Whether the member can get a record: a new one, or one whose lease has expired."""
                for topic, group in groups:
                    if topic.base + len(topic.records) > group.position:
                        return True
                    if group.leases and group.expired(server.monotonic_ms(), inner._idle_ms, 1):
                        return True
                return inner._closed

            orphan_ms = inner._orphan_in_seconds(now_ms) * 1_000
            if not server.wait_until(anything, min(timeout_ms, orphan_ms)):
                return []
        return self._call("poll", once(lambda: inner.poll(limit, 0)))

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries. Implements `BrokerConsumer.ack`."""
        deliveries = list(deliveries)
        if deliveries:
            self._call("ack", lambda: self._inner.ack(deliveries))

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        """Publish each message and settle its delivery. Implements `BrokerConsumer.forward`."""
        pairs = list(pairs)
        return self._call("forward", lambda: self._inner.forward(pairs))

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        """Renew the leases of deliveries that are still being handled. Implements `BrokerConsumer.beat`."""
        deliveries = list(deliveries)
        self._call("beat", lambda: self._inner.beat(deliveries))

    def close(self) -> None:
        """Leave the group. Implements `BrokerConsumer.close`."""
        with contextlib.suppress(BrokerUnavailable):
            self._call("leave", self._inner.close)
