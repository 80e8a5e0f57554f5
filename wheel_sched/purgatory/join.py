"""DelayedJoin: wait until all known members are there, or for so long; then go on with those who came.

Kafka's `DelayedJoin` (a group's rebalance) and its initial delay. Who is expected may change while it waits: `expect`
adds one, `dismiss` takes one out. A member that was not expected and comes in time has joined as well; one that comes
afterwards is late and is told so. Whoever calls `arrive` or `dismiss` calls `check_and_complete`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from wheel_sched.purgatory.operation import DelayedOperation, Lock

M = TypeVar("M", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Joined(Generic[M]):
    """Who came.

    Args:
        members: in the order in which they came.
        missing: who was expected and did not come in time.
    """

    members: tuple[M, ...]
    missing: frozenset[M]


class DelayedJoin(DelayedOperation, Generic[M]):
    """A barrier that does not wait for ever.

    Args:
        members: who is expected; none: it is complete at once.
        respond: called once with who came.
        timeout_ms: how long to wait for them.
        lock: see `DelayedOperation`; guards the members too.
    """

    __slots__ = ("_arrived", "_expected", "_respond")

    def __init__(
        self,
        members: Iterable[M],
        respond: Callable[[Joined[M]], object],
        *,
        timeout_ms: int,
        lock: Lock | None = None,
    ) -> None:
        super().__init__(timeout_ms, lock=lock)
        self._expected = set(members)
        self._arrived: dict[M, None] = {}
        self._respond = respond

    def arrive(self, member: M) -> bool:
        """A member is there, expected or not; twice is once. False: too late. Any thread."""
        self._lock.acquire()
        try:
            if self._ended is not None:
                return False
            self._expected.discard(member)
            self._arrived[member] = None
            return True
        finally:
            self._lock.release()

    def expect(self, member: M) -> bool:
        """Wait for another member too, unless it is there already. False: too late. Any thread."""
        self._lock.acquire()
        try:
            if self._ended is not None:
                return False
            if member not in self._arrived:
                self._expected.add(member)
            return True
        finally:
            self._lock.release()

    def dismiss(self, member: M) -> bool:
        """Wait for a member no more, and forget it if it has come. False: too late. Any thread."""
        self._lock.acquire()
        try:
            if self._ended is not None:
                return False
            self._expected.discard(member)
            self._arrived.pop(member, None)
            return True
        finally:
            self._lock.release()

    def try_complete(self) -> bool:
        """See `DelayedOperation`: everybody who is expected has come."""
        return not self._expected

    def on_complete(self) -> None:
        """See `DelayedOperation`."""
        self._respond(Joined(tuple(self._arrived), frozenset(self._expected)))
