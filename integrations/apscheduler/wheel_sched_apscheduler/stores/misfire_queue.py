"""What was due already when it was added: in order of due, then of name.

A bucket for each due, sorted when its turn comes: a burst of jobs of one moment costs no heap operation each. Adding,
discarding and taking are O(1) apart from the heap push of a new due and the sort of a bucket, which for names in order
is one pass. Nothing is a tombstone: what is discarded is gone at once.

Threads. None of it is thread-safe; the owner's lock is held.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class _Bucket(Generic[T]):
    __slots__ = ("entries", "order")

    def __init__(self) -> None:
        self.entries: dict[str, T] = {}
        self.order: list[str] | None = None  # names to come, last first; None = to be sorted


class Overdue(Generic[T]):
    """See the module."""

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket[T]] = {}
        self._heap: list[int] = []  # the dues of the buckets, and of some that have been emptied

    def add(self, due: int, name: str, entry: T) -> None:
        """Names are unique among those of a due."""
        bucket = self._buckets.get(due)
        if bucket is None:
            bucket = self._buckets[due] = _Bucket()
            if len(self._heap) > 2 * len(self._buckets) + 64:
                self._heap = list(self._buckets)
                heapify(self._heap)
            else:
                heappush(self._heap, due)
        bucket.entries[name] = entry
        bucket.order = None

    def discard(self, due: int, name: str) -> None:
        """It is to be there."""
        entries = self._buckets[due].entries
        del entries[name]
        if not entries:
            del self._buckets[due]

    def take(self, until: int, limit: int) -> list[T]:
        """At most `limit` that were due at `until`, in order; they are here no more."""
        taken: list[T] = []
        while len(taken) < limit:
            due = self.head()
            if due is None or due > until:
                break
            bucket = self._buckets[due]
            entries, order = bucket.entries, bucket.order
            if order is None:
                order = bucket.order = sorted(entries, reverse=True)
            while entries and len(taken) < limit:
                entry = entries.pop(order.pop(), None)
                if entry is not None:  # discarded since they were sorted
                    taken.append(entry)
            if not entries:
                del self._buckets[due]
        return taken

    def head(self) -> int | None:
        """The earliest due."""
        heap = self._heap
        while heap and heap[0] not in self._buckets:
            heappop(heap)
        return heap[0] if heap else None

    def clear(self) -> None:
        """Forget all."""
        self._buckets.clear()
        self._heap.clear()
