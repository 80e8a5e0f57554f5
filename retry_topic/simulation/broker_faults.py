"""Faults of a broker that wait for the next call of a kind, for both brokers of a simulated world.

A fault of `SERVER_FAULTS` comes at a time. These faults come at the first call after that time that they can hit:

- "late-commit": a transaction or a forward is done late, and its caller has given it up by then
- "untold-commit": a transaction or a forward is done, and its caller gets no reply
- "late-produce": a published batch is appended late, and its caller has given it up by then
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
    """The server of a broker."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "broker")
        world.servers["broker"] = self
        self._waiting_faults: list[Fault] = []

    def strike(self, fault: Fault) -> None:
        """See `SimulatedServer`. A fault of `HITS` waits for its call."""
        if fault.kind in HITS:
            self._waiting_faults.append(fault)
        else:
            super().strike(fault)

    def fault_of(self, what: str) -> Fault | None:
        """The fault that hits this call; it hits no other."""
        for fault in self._waiting_faults:
            if what in HITS[fault.kind]:
                self._waiting_faults.remove(fault)
                self.world.struck.append((fault, f"broker {what}"))
                return fault
        return None


def call_broker(world: World, server: BrokerServer, what: str, perform: Callable[[], T]) -> T:
    """Call a broker from the process that runs now.

    Raises:
        Lost: the request or the reply was lost, or the reply is late.
        ConnectionRefused: the server is away.
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
