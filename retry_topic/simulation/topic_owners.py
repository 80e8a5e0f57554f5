"""Finds the times at which an ordered topic had two owners: only then may the order of its keys break.

docs/ordering.md names two reasons. Either the store's server loses the lease of a topic. Or the server's clock steps
forward beyond the end of the lease, and a consumer that has not seen this lease acquires the topic. The simulated
server records what consumers ask about the lease and what it answers, with the true time. So the checker knows whether
a consumer acquired a topic too early, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from retry_topic.simulation.drawing import IDLE_MS
from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.store import StoreServer
from wheel_sched.simulation.world import World
from wheel_sched.store.core.call import Call
from wheel_sched.store.ordering.operations import OwnScope, ScopeOwnership

CALL_MS = 100  # an owner makes its last call at most this long after its lease has ended by true time


@dataclass(slots=True, eq=False)
class AskedLease:
    """A call that acquires, extends or releases a lease, and its answer. `at_ns` is true time."""

    at_ns: int
    process: str
    call: Call[Any]
    operation: OwnScope
    answer: ScopeOwnership

    @property
    def ends_ns(self) -> int:
        """When the lease ends, by true time."""
        return self.at_ns + self.operation.lease_ms * MS


class LeasingServer(StoreServer):
    """The server of the delay store. It also records the calls about leases of topics."""

    def __init__(self, world: World, shards: int) -> None:
        super().__init__(world, shards)
        self.asked: list[AskedLease] = []

    def perform(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Perform calls, and record those about leases of topics with their answers."""
        answers = super().perform(calls)
        scheduler = self.world.scheduler
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(call.operation, OwnScope) and isinstance(answer, ScopeOwnership):
                self.asked.append(AskedLease(scheduler.now_ns, scheduler.process.name, call, call.operation, answer))
        return answers


def times_of_two_owners(server: LeasingServer) -> list[range]:
    """The spans, in ns of true time, in which a topic had two owners for a reason that docs/ordering.md names.

    A span begins when another consumer acquires the topic before the lease of its owner has ended. It ends at the
    latest time at which the broker hands out the former owner's records again: `IDLE_MS` and `CALL_MS` after the end of
    that lease.
    """
    last: AskedLease | None = None  # the lease that holds by true time
    seen: dict[str, AskedLease] = {}  # by process: the last lease of another process that the server reported to it
    spans = []
    for one in server.asked:
        if one.operation.lease_ms == 0:
            if last is not None and last.operation.holder == one.operation.holder:
                last = None
            continue
        if not one.answer.epoch:
            if last is not None:
                seen[one.process] = last
            continue
        if last is not None and last.operation.holder != one.operation.holder and one.at_ns < last.ends_ns:
            knew = last.process == one.process or seen.get(one.process) is last
            if _is_in(last.call, server.lost_calls) or (not knew and _stepped(server, last.at_ns, one.at_ns)):
                spans.append(range(one.at_ns, last.ends_ns + (IDLE_MS + CALL_MS) * MS))
        last = one
    return spans


def _is_in(call: Call[Any], lost: Iterable[Call[Any]]) -> bool:
    return any(one is call for one in lost)


def _stepped(server: LeasingServer, since_ns: int, until_ns: int) -> bool:
    """Whether the server's clock stepped forward between these moments of true time."""
    return any(since_ns <= at_ns <= until_ns and after > before for at_ns, before, after in server.steps)
