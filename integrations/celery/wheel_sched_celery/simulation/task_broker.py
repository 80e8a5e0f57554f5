"""The task broker of a simulated world: one server with queues, and kombu's transport to it.

The server keeps each delivered message until it is acknowledged. It delivers the message again when the connection is
lost, as RabbitMQ does. With a visibility timeout, it also delivers the message again when the acknowledgement takes too
long, as kombu does over Redis. The client is a transport of kombu, so the product uses kombu's own `Connection` and
`Consumer`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty
from typing import Any, TypeVar

from kombu.transport import TRANSPORT_ALIASES, base, virtual

from wheel_sched.simulation.calls import ConnectionRefused, Lost
from wheel_sched.simulation.locks import SimulatedEvent
from wheel_sched.simulation.scenario import Fault
from wheel_sched.simulation.scheduler import Process
from wheel_sched.simulation.world import SimulatedServer, World

T = TypeVar("T")

SCHEME = "simulated"
TRANSPORT_ALIASES[SCHEME] = f"{__name__}:SimulatedTransport"


@dataclass(slots=True)
class _Message:
    """A message in the server, with kombu's payload as JSON."""

    payload: str
    redelivered: bool = False


Read = tuple[list[tuple[str, int, _Message]], list[tuple[str, str]]]  # (queue, tag, message) each; broadcasts


@dataclass(slots=True)
class _Unacked:
    """A delivered message that nobody has acknowledged."""

    message: _Message
    queue: str
    connection: ServerConnection
    since_ms: int


@dataclass(slots=True, eq=False)
class ServerConnection:
    """A client's connection, on the side of the server.

    Args:
        process: the client's process.
        readable: an event that is set when there may be something to read.
        commands: broadcasts that the client has not read yet. None until the client consumes broadcasts.
    """

    process: Process
    readable: SimulatedEvent = field(default_factory=SimulatedEvent)
    commands: list[tuple[str, str]] | None = None
    closed: bool = False

    @property
    def is_lost(self) -> bool:
        return self.closed or not self.process.alive


class TaskBroker(SimulatedServer):
    """The server of the task broker.

    Args:
        world: the world.
        visibility_ms: how long a message may stay unacknowledged; 0: for ever, as in RabbitMQ.
    """

    current: TaskBroker  # of the present history; kombu makes transports, and we cannot pass arguments

    def __init__(self, world: World, visibility_ms: int) -> None:
        super().__init__(world, "broker")
        world.servers["broker"] = self
        TaskBroker.current = self
        self._visibility_ms = visibility_ms
        self._queues: dict[str, deque[_Message]] = {}
        self._unacked: dict[int, _Unacked] = {}
        self._connections: list[ServerConnection] = []
        self._tags = 0

    def strike(self, fault: Fault) -> None:
        """Apply a fault. An outage breaks all connections. "redeliver" requeues all unacknowledged messages."""
        if fault.kind == "redeliver":
            self._requeue(lambda unacked: True)
            return
        super().strike(fault)
        if fault.kind == "outage":
            for connection in self._connections:
                connection.closed = True
                connection.readable.set()

    def unsettled(self) -> dict[str, int]:
        """The number of messages that wait or are unacknowledged, by queue."""
        found = {name: len(messages) for name, messages in self._queues.items() if messages}
        for unacked in self._unacked.values():
            found[unacked.queue] = found.get(unacked.queue, 0) + 1
        return found

    # -- requests of clients; the server performs each in one step

    def connect(self, process: Process) -> ServerConnection:
        connection = ServerConnection(process)
        self._connections.append(connection)
        return connection

    def disconnect(self, connection: ServerConnection) -> None:
        connection.closed = True
        self._recover()

    def put(self, queue: str, payload: str) -> None:
        self._queues.setdefault(queue, deque()).append(_Message(payload))
        self._wake()

    def broadcast(self, command: str, argument: str) -> None:
        """Send a command to all consumers that are connected now."""
        for connection in self._connections:
            if connection.commands is not None and not connection.is_lost:
                connection.commands.append((command, argument))
        self._wake()

    def get(self, connection: ServerConnection, queues: list[str], limit: int) -> Read:
        """Deliver at most `limit` messages, and the broadcasts."""
        if connection.closed:
            raise ConnectionResetError("the connection was closed")
        self._recover()
        found: list[tuple[str, int, _Message]] = []
        for queue in queues:
            waiting = self._queues.get(queue)
            while waiting and len(found) < limit:
                message = waiting.popleft()
                self._tags += 1
                self._unacked[self._tags] = _Unacked(message, queue, connection, self.monotonic_ms())
                found.append((queue, self._tags, message))
        commands, connection.commands = connection.commands or [], []
        return found, commands

    def ack(self, connection: ServerConnection, tag: int) -> None:
        """Settle the message with this delivery tag. A tag is valid only on the connection that got the message."""
        unacked = self._unacked.get(tag)
        if unacked is not None and unacked.connection is connection:
            del self._unacked[tag]

    def reject(self, connection: ServerConnection, tag: int, requeue: bool) -> None:
        unacked = self._unacked.get(tag)
        if unacked is None or unacked.connection is not connection:
            return
        if requeue:
            self._requeue(lambda one: one is unacked)
        else:
            del self._unacked[tag]

    def has_some(self, connection: ServerConnection, queues: list[str], room: int) -> bool:
        """Whether the client has something to read, so that its event loop would wake up."""
        return (
            connection.closed
            or bool(connection.commands)
            or (room > 0 and (any(self._queues.get(queue) for queue in queues) or self._has_overdue()))
        )

    # -- redelivery

    def _is_overdue(self, unacked: _Unacked) -> bool:
        """Whether the connection of a delivered message is lost, or the message's visibility timeout has passed."""
        if unacked.connection.is_lost:
            return True
        return bool(self._visibility_ms) and self.monotonic_ms() - unacked.since_ms > self._visibility_ms

    def _has_overdue(self) -> bool:
        return any(map(self._is_overdue, self._unacked.values()))

    def _recover(self) -> None:
        """Put overdue messages back into their queues."""
        if self._has_overdue():
            self._requeue(self._is_overdue)
        self._connections = [one for one in self._connections if not one.is_lost]

    def _requeue(self, chosen: Callable[[_Unacked], bool]) -> None:
        tags = [tag for tag, unacked in self._unacked.items() if chosen(unacked)]
        for tag in reversed(tags):
            unacked = self._unacked.pop(tag)
            self._queues[unacked.queue].appendleft(_Message(unacked.message.payload, redelivered=True))
        if tags:
            self._wake()

    def _wake(self) -> None:
        for connection in self._connections:
            connection.readable.set()


class UnackedTags:
    """The QoS object of a kombu channel: its prefetch count, and its unacknowledged messages."""

    def __init__(self, channel: SimulatedChannel, prefetch_count: int = 0) -> None:
        self._channel = channel
        self.prefetch_count = prefetch_count
        self._tags: set[int] = set()

    @property
    def room(self) -> int:
        """How many more messages the channel may get."""
        return max(0, self.prefetch_count - len(self._tags)) if self.prefetch_count else 100

    def can_consume(self) -> bool:
        return self.room > 0

    def append(self, message: object, delivery_tag: int) -> None:
        self._tags.add(delivery_tag)

    def ack(self, delivery_tag: int) -> None:
        self._tags.discard(delivery_tag)
        self._channel.server_call("ack", lambda server, connection: server.ack(connection, delivery_tag))

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        self._tags.discard(delivery_tag)
        self._channel.server_call("reject", lambda server, connection: server.reject(connection, delivery_tag, requeue))

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Do nothing: the server requeues the messages of a lost connection."""


class SimulatedChannel(virtual.Channel):
    """A kombu channel to the simulated server."""

    QoS = UnackedTags
    do_restore = False

    def server_call(self, what: str, perform: Callable[[TaskBroker, ServerConnection], T]) -> T:
        transport: SimulatedTransport | None = self.connection
        if transport is None:
            raise ConnectionResetError("the channel is closed")
        return transport.server_call(what, perform)

    def _new_queue(self, queue: str, **_: object) -> None:
        """Do nothing: a queue exists from its first message on."""

    def _put(self, queue: str, message: dict[str, Any], **_: object) -> None:
        payload = json.dumps(message)
        self.server_call("publish", lambda server, _: server.put(queue, payload))

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        raise Empty  # messages come with `drain_events` only

    def _next_delivery_tag(self) -> str:
        return ""  # the server gives each delivery its tag


class SimulatedTransport(virtual.Transport):
    """A kombu transport to the simulated server. After a lost call the connection is broken."""

    Channel = SimulatedChannel
    driver_type = SCHEME
    driver_name = SCHEME
    default_port = 1
    connection_errors = (ConnectionError, OSError)
    recoverable_connection_errors = (ConnectionError, OSError)
    implements = base.Transport.implements.extend(asynchronous=True, exchange_type=frozenset(["direct", "topic"]))

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.server = TaskBroker.current
        self._connection: ServerConnection | None = None

    def driver_version(self) -> str:
        return "1"

    def establish_connection(self) -> Any:
        """Overrides `virtual.Transport.establish_connection`."""
        process = self.server.world.scheduler.process
        self._connection = self._reach("connect", lambda: self.server.connect(process))
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Overrides `virtual.Transport.close_connection`. The server notices that the connection is closed."""
        super().close_connection(connection)
        if self._connection is not None:
            self.server.disconnect(self._connection)
            self._connection = None

    def verify_connection(self, connection: Any) -> bool:
        """Overrides `virtual.Transport.verify_connection`."""
        return self._connection is not None and not self._connection.closed

    def server_call(self, what: str, perform: Callable[[TaskBroker, ServerConnection], T]) -> T:
        """Call the server over this connection.

        Raises:
            ConnectionError: the connection was broken before the call, or broke during the call.
        """
        connection = self._connection
        if connection is None or connection.closed:
            raise ConnectionResetError("the connection is broken")
        return self._reach(what, lambda: perform(self.server, connection))

    def _reach(self, what: str, perform: Callable[[], T]) -> T:
        try:
            return self.server.world.call(self.server, what, perform)
        except ConnectionRefused:
            self._break()
            raise ConnectionRefusedError("the broker is away") from None
        except Lost as lost:
            self._break()
            raise ConnectionResetError(str(lost)) from None

    def _break(self) -> None:
        if self._connection is not None:
            self.server.disconnect(self._connection)

    # -- for a worker's loop

    def consume(self) -> SimulatedEvent:
        """Begin to receive broadcasts. Returns an event that is set when there may be something to read."""
        if self._connection is None:
            raise ConnectionResetError("the connection is broken")
        if self._connection.commands is None:
            self._connection.commands = []
        return self._connection.readable

    def is_readable(self) -> bool:
        """Whether the event loop would find something to read."""
        connection = self._connection
        if connection is None:
            return True
        queues, room = self._queues_and_room()
        return self.server.has_some(connection, queues, room)

    def read(self) -> list[tuple[str, str]]:
        """Deliver messages to the consumers' callbacks, and return the broadcasts.

        Raises:
            ConnectionError: the connection was broken before the call, or broke during the call.
        """
        queues, room = self._queues_and_room()
        answers: list[Read] = []

        def get(server: TaskBroker, connection: ServerConnection) -> Read:
            if not answers:  # a request that arrives twice is one request of one connection
                answers.append(server.get(connection, queues, room))
            return answers[0]

        deliveries, commands = self.server_call("get", get)
        for queue, tag, message in deliveries:
            payload = json.loads(message.payload)
            payload["properties"]["delivery_tag"] = tag
            if message.redelivered:
                payload["headers"]["redelivered"] = True
                payload["properties"]["delivery_info"]["redelivered"] = True
            self._callbacks[queue](payload)
        return commands

    def _queues_and_room(self) -> tuple[list[str], int]:
        (channel,) = [one for one in self.channels if one._active_queues] or [None]
        return ([], 0) if channel is None else (channel._active_queues, channel.qos.room)
