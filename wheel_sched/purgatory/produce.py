"""DelayedProduce: wait for the answers of all partitions, at most for a given time; then respond with them.

This is Kafka's `DelayedProduce` (`acks=all`). A partition may also answer with a failure. After `acknowledge` the
caller calls `check_and_complete`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from wheel_sched.purgatory.operation import DelayedOperation, Lock

P = TypeVar("P", bound=Hashable)
A = TypeVar("A")


class DelayedProduce(DelayedOperation, Generic[P, A]):
    """Collects one answer from each partition.

    Args:
        partitions: the partitions that must answer.
        respond: called once with the answers; None for a partition without an answer.
        timeout_ms: how long to wait for the answers.
        lock: see `DelayedOperation`; it also guards the answers.
    """

    __slots__ = ("_answers", "_missing", "_respond")

    def __init__(
        self,
        partitions: Iterable[P],
        respond: Callable[[Mapping[P, A | None]], object],
        *,
        timeout_ms: int,
        lock: Lock | None = None,
    ) -> None:
        super().__init__(timeout_ms, lock=lock)
        self._answers: dict[P, A | None] = dict.fromkeys(partitions)
        self._missing = set(self._answers)
        self._respond = respond

    def acknowledge(self, partition: P, answer: A) -> bool:
        """Record a partition's answer, which may be a failure. Any thread may call it.

        Returns False if the partition has answered already or is unknown, or if the operation is completed.
        """
        self._lock.acquire()
        try:
            if self._ended is not None or partition not in self._missing:
                return False
            self._missing.remove(partition)
            self._answers[partition] = answer
            return True
        finally:
            self._lock.release()

    @property
    def missing(self) -> frozenset[P]:
        """The partitions that have not answered."""
        self._lock.acquire()
        try:
            return frozenset(self._missing)
        finally:
            self._lock.release()

    def try_complete(self) -> bool:
        """Whether all partitions have answered."""
        return not self._missing

    def on_complete(self) -> None:
        """Call `respond` with the answers."""
        self._respond(self._answers)
