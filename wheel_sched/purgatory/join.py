"""DelayedJoin: wait for all expected members, at most for a given time; then continue with those that have arrived.

This is Kafka's `DelayedJoin` (a group's rebalance), without its initial delay. The expected members may change during
the wait: `expect` adds one, `dismiss` removes one. An unexpected member that arrives in time joins too. After `arrive`
or `dismiss` the caller calls `check_and_complete`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from wheel_sched.purgatory.operation import DelayedOperation, Lock

M = TypeVar("M", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Joined(Generic[M]):
    """The result of a `DelayedJoin`.

    Args:
        members: the members that arrived in time, in the order of their arrival.
        missing: expected members that did not arrive in time.
    """

    members: tuple[M, ...]
    missing: frozenset[M]


class DelayedJoin(DelayedOperation, Generic[M]):
    """Waits until all expected members have arrived, or until a timeout.

    Args:
        members: the expected members. If there are none, the join completes at once.
        respond: called once with the result.
        timeout_ms: how long to wait for the members.
        lock: see `DelayedOperation`; it also guards the members.
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
        """Record that a member has arrived, expected or not. Returns False if the join is completed.

        Any thread may call it, and repeats are harmless.
        """
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
        """Expect another member, unless it has arrived already. Returns False if the join is completed.

        Any thread may call it.
        """
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
        """Stop waiting for a member, and forget it if it has arrived. Any thread may call it.

        Returns False if the join is completed.
        """
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
        """Whether all expected members have arrived."""
        return not self._expected

    def on_complete(self) -> None:
        """Call `respond` with the members that arrived and those that are missing."""
        self._respond(Joined(tuple(self._arrived), frozenset(self._expected)))
