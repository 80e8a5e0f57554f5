"""Faults of a simulated broker that wait for the next call of a certain kind.

A fault of `SERVER_FAULTS` strikes the server at the time that the scenario sets. A fault of this module strikes the
first suitable call after that time:

- "late-commit": the broker performs a transaction or a forward late, after its caller has given up
- "untold-commit": the broker performs a transaction or a forward, and its caller gets no reply
- "late-produce": the broker appends a published batch late, after its caller has given up
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from wheel_sched.simulation.calls import MS, Lost
from wheel_sched.simulation.scenario import Fault
from wheel_sched.simulation.world import SimulatedServer, World

T = TypeVar("T")

_COMMITS = ("send claim", "forward")
HITS = {"late-commit": _COMMITS, "untold-commit": _COMMITS, "late-produce": ("publish",)}
GIVEN_UP_MS = 50  # a caller waits this long for a reply, as in `World.call`


class BrokerServer(SimulatedServer):
    """The server of a simulated broker. The servers of the queue broker and of the log broker inherit its faults."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "broker")
        world.servers["broker"] = self
        self._waiting_faults: list[Fault] = []

    def strike(self, fault: Fault) -> None:
        """Let a fault happen now, or, if `HITS` names its kind, at the next call that this kind hits."""
        if fault.kind in HITS:
            self._waiting_faults.append(fault)
        else:
            super().strike(fault)

    def fault_of(self, what: str) -> Fault | None:
        """Return the waiting fault that hits this call, or None. The fault then hits no other call."""
        for fault in self._waiting_faults:
            if what in HITS[fault.kind]:
                self._waiting_faults.remove(fault)
                self.world.struck.append((fault, f"broker {what}"))
                return fault
        return None


def call_broker(world: World, server: BrokerServer, what: str, perform: Callable[[], T]) -> T:
    """Call a broker from the simulated process that runs now. A waiting fault may hit the call.

    Raises:
        Lost: the request or the reply was lost, or the reply is late.
        ConnectionRefused: the server refused the connection.
    """
    fault = server.fault_of(what)
    if fault is None:
        return world.call(server, what, perform)
    world.note(world.scheduler.process.name, f"broker {what}: {fault.kind}")
    if fault.kind == "untold-commit":
        world.call(server, what, perform)
    else:
        world.later(fault.amount, lambda: world.perform_late(server, "world", f"broker {what}", perform))
    world.scheduler.block(GIVEN_UP_MS * MS)
    raise Lost(performed=fault.kind == "untold-commit")
