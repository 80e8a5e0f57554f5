"""The designs that are compared: our purgatory, Kafka's old purgatory, and ours without locks as a lower bound."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from benchmarks.purgatory.demand import REQUEST_BYTES, TIMEOUT_MS
from wheel_sched.purgatory import DelayedOperation, Purgatory, Reaper

PURGE_INTERVAL = 1000  # Kafka's `purgatory.purge.interval.requests`


class Request(Protocol):
    """A request that the benchmark makes and completes."""

    def force_complete(self) -> bool: ...


class Design(Protocol):
    """A purgatory of one of the compared designs, as the benchmark calls it."""

    def request(self, completes_at_ns: int, done: Callable[[], object]) -> Request:
        """Make a request that can complete from `completes_at_ns` on. When it completes, it calls `done` once."""
        ...

    def try_complete_else_watch(self, operation: Any, keys: Sequence[str], /) -> bool: ...

    def close(self) -> object: ...


class NewRequest(DelayedOperation):
    """The request of our design, like Kafka's `FakeOperation`."""

    __slots__ = ("_completes_at_ns", "_data", "on_complete")

    def __init__(self, completes_at_ns: int, done: Callable[[], object]) -> None:
        DelayedOperation.__init__(self, TIMEOUT_MS)  # faster than super()
        self._data = bytes(REQUEST_BYTES)
        self._completes_at_ns = completes_at_ns
        self.on_complete = done  # type: ignore[method-assign,assignment]

    def try_complete(self) -> bool:
        return time.monotonic_ns() >= self._completes_at_ns


class New:
    """Our purgatory. Each operation has a lock, is tried twice, and leaves its lists as soon as it completes.

    A timing wheel holds the timeouts.
    """

    def __init__(self, wheel_size: int) -> None:
        self._reaper = Reaper(wheel_size=wheel_size)
        self._purgatory: Purgatory[str] = Purgatory(self._reaper)
        self.try_complete_else_watch = self._purgatory.try_complete_else_watch
        self.request = NewRequest

    def close(self) -> None:
        self._purgatory.close()
        self._reaper.close()


class BareRequest:
    """The request of `Bare`. It completes at most once, if only one thread at a time calls its methods."""

    __slots__ = ("_completes_at_ns", "_data", "completed", "entry", "lists", "on_complete")

    def __init__(self, completes_at_ns: int, done: Callable[[], object]) -> None:
        self._data = bytes(REQUEST_BYTES)
        self._completes_at_ns = completes_at_ns
        self.on_complete = done
        self.completed = False
        self.entry: Any = None
        self.lists: list[dict[Any, None]] = []

    def try_complete(self) -> bool:
        return time.monotonic_ns() >= self._completes_at_ns and self.force_complete()

    def force_complete(self) -> bool:
        if self.completed:
            return False
        self.completed = True
        for watchers in self.lists:
            del watchers[self]
        if self.entry is not None:
            self.entry.cancel()
        self.on_complete()
        return True

    def run(self) -> None:
        self.force_complete()


class Bare:
    """The lower bound: tries, lists and wheel as in `New`, without locks and statistics. It is not safe for threads."""

    def __init__(self, wheel_size: int) -> None:
        self._reaper = Reaper(wheel_size=wheel_size)
        self._lists: dict[str, dict[BareRequest, None]] = {}
        self.request = BareRequest

    def try_complete_else_watch(self, operation: BareRequest, keys: Sequence[str]) -> bool:
        if operation.try_complete():
            return True
        entered = operation.lists
        for key in keys:
            watchers = self._lists.get(key)
            if watchers is None:
                watchers = self._lists[key] = {}
            watchers[operation] = None
            entered.append(watchers)
        if operation.try_complete():
            return True
        operation.entry = self._reaper.schedule(TIMEOUT_MS, operation.run)
        return False

    def close(self) -> None:
        self._reaper.close()


class OldRequest:
    """The request of the old design. A flag ensures that it completes only once. It then stays in its lists."""

    __slots__ = ("_completes_at_ns", "_data", "_lock", "completed", "on_complete")

    def __init__(self, completes_at_ns: int, done: Callable[[], object]) -> None:
        self._data = bytes(REQUEST_BYTES)
        self._completes_at_ns = completes_at_ns
        self.on_complete = done
        self.completed = False
        self._lock = threading.Lock()

    def try_complete(self) -> bool:
        return time.monotonic_ns() >= self._completes_at_ns and self.force_complete()

    def force_complete(self) -> bool:
        with self._lock:
            if self.completed:
                return False
            self.completed = True
        self.on_complete()
        return True


class Old:
    """Kafka's purgatory before the redesign: one heap entry per request, and scans that remove completed requests.

    A completed request stays in the heap and in its watcher lists. After each expired request, or after 200 ms, the
    reaper purges all lists if they hold `PURGE_INTERVAL` entries, and the heap if it holds as many. So if this many
    requests really wait, the reaper scans all of them for each request that expires. To remove an entry, the reaper
    searches the heap, as the original does (`DelayQueue`'s iterator). The reaper filters a list in one pass, which is
    faster than the original.

    Source: `ExpiredOperationReaper.doWork` before KAFKA-1989 (0.8.2).
    """

    def __init__(self, wheel_size: int) -> None:
        self.request = OldRequest
        self._numbers = itertools.count()
        self._heap: list[tuple[int, int, OldRequest]] = []
        self._changed = threading.Condition()
        self._lists: dict[str, list[OldRequest]] = {}
        self._lists_lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._reap, daemon=True)
        self._thread.start()

    def try_complete_else_watch(self, operation: OldRequest, keys: Sequence[str]) -> bool:
        if operation.try_complete():
            return True
        for key in keys:
            with self._lists_lock:
                self._lists.setdefault(key, []).append(operation)
        if operation.try_complete():
            return True
        deadline_ns = time.monotonic_ns() + TIMEOUT_MS * 1_000_000
        with self._changed:
            entry = (deadline_ns, next(self._numbers), operation)
            heapq.heappush(self._heap, entry)
            if self._heap[0] is entry:
                self._changed.notify()
        return False

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _reap(self) -> None:
        while not self._closed:
            self._poll_expired()
            if sum(map(len, self._lists.values())) >= PURGE_INTERVAL:
                for key in list(self._lists):
                    with self._lists_lock:
                        self._lists[key] = [operation for operation in self._lists[key] if not operation.completed]
            if len(self._heap) >= PURGE_INTERVAL:
                with self._changed:
                    heap = self._heap
                    for entry in list(heap):
                        if entry[2].completed:
                            heap[heap.index(entry)] = heap[-1]
                            heap.pop()
                    heapq.heapify(heap)

    def _poll_expired(self) -> None:
        """Expire one request that is not completed; give up after 200 ms without one."""
        until = time.monotonic() + 0.2
        while not self._closed:
            with self._changed:
                now_ns = time.monotonic_ns()
                while not self._heap or self._heap[0][0] > now_ns:
                    left_s = until - time.monotonic()
                    if left_s <= 0 or self._closed:
                        return
                    next_s = (self._heap[0][0] - now_ns) / 1e9 if self._heap else left_s
                    self._changed.wait(min(left_s, next_s))
                    now_ns = time.monotonic_ns()
                operation = heapq.heappop(self._heap)[2]
            if operation.force_complete():
                return


DESIGNS: dict[str, Callable[[int], Design]] = {"old": Old, "new": New, "bare": Bare}
