"""MisfireQueue: jobs that were already due when they were added, by due time, then by name.

Each due time has a bucket, which is sorted when its first entry is taken. So a burst of jobs with one due time costs no
heap operation per job. Adding, discarding and taking are O(1), except the heap push of a new due time and the sort of a
bucket. The sort is one pass when names come in order. A discarded entry is removed immediately, without a marker.

Threads: not thread-safe; the owner holds its lock.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class _Bucket(Generic[T]):
    __slots__ = ("entries", "order")

    def __init__(self) -> None:
        self.entries: dict[str, T] = {}
        self.order: list[str] | None = None  # remaining names, last first; None = not sorted yet


class MisfireQueue(Generic[T]):
    """See the module."""

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket[T]] = {}
        self._heap: list[int] = []  # dues of the buckets, and of some buckets that are empty now

    def add(self, due: int, name: str, entry: T) -> None:
        """Add an entry. Its name is unique within its due."""
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
        """Remove an existing entry."""
        entries = self._buckets[due].entries
        del entries[name]
        if not entries:
            del self._buckets[due]

    def take(self, until: int, limit: int) -> list[T]:
        """Remove and return at most `limit` entries that are due at `until`, in order."""
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
                if entry is not None:  # None: discarded after the sort
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
        """Remove everything."""
        self._buckets.clear()
        self._heap.clear()
