"""The clients with which one simulated process calls the log broker: the broker client and the sender of claims.

The members of groups are in `log_consumer` and `log_reader`. A request may arrive late, so it carries the state that
the client had when it sent the request.
"""

from __future__ import annotations

from collections.abc import Sequence

from retry_topic.brokers.protocol import BrokerInDoubt, Fenced, PositionsOf, PublishFailure, joining
from retry_topic.message import Message
from retry_topic.message.headers import return_to_origin
from retry_topic.simulation.group_member import LogClient
from retry_topic.simulation.log_consumer import RemoteLogConsumer
from retry_topic.simulation.log_reader import RemoteLogReader
from retry_topic.simulation.log_server import LogServer
from wheel_sched.simulation.calls import once
from wheel_sched.simulation.world import World


class RemoteLogBroker(LogClient):
    """The client of a `LogServer` in one process. Implements `LogBroker` and `PartitionedBroker`."""

    name = "simulated log"
    transactions = True

    def __init__(self, world: World, server: LogServer) -> None:
        super().__init__(world, server)
        self._members = 0

    def _member(self) -> str:
        self._members += 1
        return f"{self._world.scheduler.process.name}-{self._members}-{self._server._number()}"

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Publish messages. Returns an answer for each, as `Broker.publish`; all are in doubt if the reply was lost."""
        messages = list(messages)
        if not messages:
            return []
        try:
            return self._call("publish", once(lambda: self._server.append(messages)))
        except BrokerInDoubt:
            return [PublishFailure("no reply", in_doubt=True) for _ in messages]

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> RemoteLogConsumer:
        """Join a group on topics. Creates absent topics, as the real broker does. Implements `PartitionedBroker`."""
        names = joining(topics, group, idle_ms)
        return RemoteLogConsumer(self._world, self._server, names, group, idle_ms, self._member)

    def log_reader(self, topic: str, group: str, positions: PositionsOf, *, idle_ms: int = 30_000) -> RemoteLogReader:
        """Read a topic as a member of a group; see `LogReader`. Implements `LogBroker.log_reader`."""
        return RemoteLogReader(self._world, self._server, topic, group, positions, idle_ms, self._member)

    def sender(self, namespace: str, shards: int) -> RemoteSender:
        """Make a sender that publishes the items of claims in transactions. Implements `LogBroker.sender`."""
        return RemoteSender(self._world, self._server, namespace)

    def topic_id(self, topic: str) -> str:
        """The permanent id of a topic. Implements `PartitionedBroker.topic_id`."""
        return self._call("topic id", lambda: self._server.topics[topic].id)

    def create_topic(self, topic: str) -> None:
        """Create a topic when it is absent. Implements `Broker.create_topic`."""
        self._call("create topic", lambda: self._server.create(topic))

    def topic_problem(self, topic: str) -> str | None:
        """Why a topic cannot have this name; None if it can. Implements `NamesBroker.topic_problem`."""
        return None if topic else "expected a name"

    def topics(self) -> dict[str, int]:
        """The topics, and how many records each holds. Implements `Broker.topics`."""
        return self._call("topics", lambda: {name: len(self._server.records(name)) for name in self._server.topics})

    def reads(self, group: str, topic: str) -> bool:
        """Whether a group reads a topic. Implements `ReadersBroker.reads`."""
        return self._call("readers", lambda: self._server.reads(group, topic))

    def close(self) -> None:
        """Do nothing, because this client holds no connection. Implements `Broker.close`."""


class RemoteSender(LogClient):
    """Sends claims in transactions. Implements `ClaimSender`."""

    def __init__(self, world: World, server: LogServer, namespace: str) -> None:
        super().__init__(world, server)
        self._namespace = namespace
        self._epochs: dict[int, int] = {}

    def take_over(self, shard: int) -> int | None:
        """Fence the shard's previous sender. Returns the number of the last claim that was sent; None without one."""
        name = f"{self._namespace}.claims-{shard}"
        self._epochs.pop(shard, None)
        self._epochs[shard] = self._call("init producer", lambda: self._server.begin_producer(name))
        return self._call("last claim", lambda: self._server.claims.get((self._namespace, shard)))

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Send the messages of a claim and its number in one transaction. Implements `ClaimSender.send`."""
        epoch = self._epochs.get(shard)
        if epoch is None:
            raise BrokerInDoubt("the producer of the shard was given up", in_doubt=True)
        name, returned = f"{self._namespace}.claims-{shard}", [return_to_origin(message) for message in messages]
        try:
            return self._call(
                "send claim",
                once(lambda: self._server.send_claim(name, epoch, (self._namespace, shard, number), returned)),
            )
        except (BrokerInDoubt, Fenced):
            self._epochs.pop(shard, None)
            raise

    def stale(self, shard: int) -> bool:
        """Return False, because the simulated broker never forgets a claim's number. Implements `ClaimSender.stale`."""
        return False

    def close(self) -> None:
        """Forget the producers of all shards. Implements `ClaimSender.close`."""
        self._epochs.clear()
