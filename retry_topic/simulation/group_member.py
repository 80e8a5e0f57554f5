"""Members of a group of the simulated log broker: they join, send heartbeats in a thread, and rejoin if expelled."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from retry_topic.brokers.protocol import BrokerInDoubt
from retry_topic.simulation.broker_faults import call_broker
from retry_topic.simulation.log_server import LogServer, Place
from wheel_sched.errors import BrokerUnavailable
from wheel_sched.simulation.calls import ConnectionRefused, Lost
from wheel_sched.simulation.world import World

T = TypeVar("T")


class LogClient:
    """A client of a `LogServer`. Turns the faults of a call into the errors of a broker."""

    def __init__(self, world: World, server: LogServer) -> None:
        self._world, self._server = world, server

    def _call(self, what: str, perform: Callable[[], T]) -> T:
        try:
            return call_broker(self._world, self._server, what, perform)
        except ConnectionRefused:
            raise BrokerUnavailable("the broker is away: nothing was done") from None
        except Lost:
            raise BrokerInDoubt("no reply", in_doubt=True) from None


class GroupMember(LogClient):
    """The base class of consumers and log readers. Joins the group, sends heartbeats, and rejoins if expelled."""

    def __init__(
        self,
        world: World,
        server: LogServer,
        topics: tuple[str, ...],
        group: str,
        idle_ms: int,
        name: Callable[[], str],
    ) -> None:
        super().__init__(world, server)
        self._topics, self._group, self._idle_ms, self._name = topics, group, idle_ms, name
        self._member = ""
        self._assigned_then = -1  # how often the group had assigned partitions at this member's last poll
        self._closed = threading.Event()
        self._call("create topics", lambda: server.create(*topics))
        threading.Thread(target=self._beat_on, name="kafka-heartbeat", daemon=True).start()

    def _beat_on(self) -> None:
        while not self._closed.wait(self._idle_ms / 3_000):
            with contextlib.suppress(BrokerUnavailable):
                self._beat_once()

    def _beat_once(self) -> None:
        member = self._member
        if not member:
            return
        places = self._call("heartbeat", lambda: self._server.beat(self._group, member))
        if member != self._member:
            return
        if places is None:
            self._expelled()
        elif places:
            self._revoked(places)
            self._call("give up", lambda: self._server.give_up(self._group, member, places))

    def _expelled(self) -> None:
        """React to an expulsion from the group. Subclasses override it. The next poll joins again."""

    def _revoked(self, places: Sequence[Place]) -> None:
        """Prepare for the move of these partitions to other members. Subclasses override it."""
        raise NotImplementedError

    def _join(self) -> None:
        """Join the group, unless this member is in it already. Raises `BrokerUnavailable` if the member was closed."""
        if self._closed.is_set():
            raise BrokerUnavailable("this consumer was closed: nothing was read")
        if not self._member or self._server.beat(self._group, self._member) is None:
            self._member = name = self._name()
            self._call("join", lambda: self._server.join(self._group, name, self._topics, self._idle_ms))

    def _leave(self) -> None:
        member, self._member = self._member, ""
        if member:
            with contextlib.suppress(BrokerUnavailable):
                self._call("leave", lambda: self._server.leave(self._group, member))

    def _joined(self) -> bool:
        """Whether this member is in the group and has seen the newest assignment of the partitions."""
        group = self._server.groups.get(self._group)
        return group is not None and self._member in group.members and group.assigned == self._assigned_then

    def _seen(self) -> int:
        """How often the group has assigned its partitions so far."""
        return self._server.groups[self._group].assigned

    def _id_of(self, topic: str) -> str:
        return self._call("topic id", lambda: self._server.topics[topic].id)
