"""DelayedJoin: wait until all expected members have arrived, or until the time is up; go on with those who came.

Kafka's `DelayedJoin` (a group's rebalance) and its initial delay. The expected members may change during the wait:
`expect` adds one, `dismiss` removes one. A member that was not expected joins too if it arrives in time. A member that
arrives later gets False. Whoever calls `arrive` or `dismiss` calls `check_and_complete` afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from wheel_sched.purgatory.operation import DelayedOperation, Lock

M = TypeVar("M", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Joined(Generic[M]):
    """The members that came, and those that did not.

    Args:
        members: in the order in which they came.
        missing: expected members that did not come in time.
    """

    members: tuple[M, ...]
    missing: frozenset[M]


class DelayedJoin(DelayedOperation, Generic[M]):
    """A barrier with a timeout.

    Args:
        members: the expected members. Without any, the join is complete at once.
        respond: called once with the members that came.
        timeout_ms: how long to wait for them.
        lock: see `DelayedOperation`; it guards the members too.
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
        """A member has arrived, expected or not; twice counts once. False: too late. Any thread."""
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
        """Wait for another member too, unless it has arrived. False: too late. Any thread."""
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
        """Stop waiting for a member, and forget it if it has arrived. False: too late. Any thread."""
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
        """See `DelayedOperation`: all expected members have arrived."""
        return not self._expected

    def on_complete(self) -> None:
        """See `DelayedOperation`."""
        self._respond(Joined(tuple(self._arrived), frozenset(self._expected)))
