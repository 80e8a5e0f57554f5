"""The subjects, which the benchmark compares: our cores and other timers for Python, on virtual time if possible.

Each subject gets deadlines in whole milliseconds and converts them inside its own loop, so no adapter adds to its time.
Where a timer can hand out tasks without calling them, they are not called, because a call costs the same everywhere.
"""

from __future__ import annotations

import asyncio
import sched
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

from benchmarks.kafka_structure import SystemTimer as KafkaStructure
from wheel_sched.wheel import CORES


class Task:
    """The callback of every entry. It is not None, because some timers use None for a cancelled entry."""

    def __call__(self) -> None:
        """Do nothing."""


TASK = Task()


class Filled:
    """A subject that can only be filled: its `timer` has `schedule(task, deadline_ms)`, and entries never expire."""

    def __init__(self, timer: Any) -> None:
        self.timer = timer

    def fill(self, deadlines_ms: Sequence[int]) -> list[Any]:
        """Schedule an entry for each deadline. Returns the handles of the entries."""
        schedule = self.timer.schedule
        return [schedule(TASK, deadline_ms) for deadline_ms in deadlines_ms]

    def close(self) -> None:
        """There is nothing to close."""


class Handed(Filled):
    """A subject whose `timer` also has `advance(now_ms)`, which returns the expired entries."""

    def drain(self, moments_ms: Sequence[int]) -> int:
        """Advance the timer to each of the times. Returns how many entries expired."""
        advance = self.timer.advance
        return sum([len(advance(now_ms)) for now_ms in moments_ms])


class LazyEntry:
    """A handle of `LazyHeap`."""

    __slots__ = ("cancelled", "heap", "task")

    cancelled: bool
    heap: LazyHeap
    task: Any

    def cancel(self) -> None:
        """Mark the entry; rebuild the heap if most of its entries are marked."""
        if self.cancelled:
            return
        self.cancelled = True
        self.task = None
        heap = self.heap
        heap.dead += 1
        if heap.dead > 100 and heap.dead * 2 > len(heap.queue):  # asyncio has the same rule
            heap.queue = [item for item in heap.queue if not item[2].cancelled]
            heapify(heap.queue)
            heap.dead = 0


class LazyHeap:
    """The usual timer over `heapq`, well made: with tuples, marks for cancelled entries, and compaction."""

    def __init__(self) -> None:
        self.queue: list[tuple[int, int, LazyEntry]] = []
        self.dead = self.number = 0

    def schedule(self, task: Any, deadline_ms: int) -> LazyEntry:
        """Add an entry. Entries with the same deadline keep their order."""
        entry = LazyEntry()
        entry.task = task
        entry.cancelled = False
        entry.heap = self
        self.number += 1
        heappush(self.queue, (deadline_ms, self.number, entry))
        return entry

    def advance(self, now_ms: int) -> list[LazyEntry]:
        """Remove and return the due entries."""
        due = []
        queue = self.queue
        while queue and queue[0][0] <= now_ms:
            entry = heappop(queue)[2]
            if entry.cancelled:
                self.dead -= 1
            else:
                entry.cancelled = True
                due.append(entry)
        return due


class HandleOnly:
    """Creates a handle (the object that stands for an entry) and returns it. No timer in Python can cost less."""

    class Handle:
        """A handle with five fields, one more than a handle of our pure core."""

        __slots__ = ("deadline_ms", "slot", "state", "task", "wheel")
        task: Any
        deadline_ms: int
        wheel: HandleOnly

        def cancel(self) -> None:
            """Do nothing."""

    def schedule(self, task: Any, deadline_ms: int) -> HandleOnly.Handle:
        """Make a handle with the fields that a timer needs."""
        handle = HandleOnly.Handle()
        handle.task = task
        handle.deadline_ms = deadline_ms
        handle.wheel = self
        return handle

    def advance(self, now_ms: int) -> tuple[()]:
        """Return no entries, because this timer keeps none."""
        return ()


class _VirtualLoop(asyncio.SelectorEventLoop):
    now_s = 0.0

    def time(self) -> float:
        return self.now_s


class AsyncioLoop:
    """A timer over `loop.call_at` of asyncio. The loop runs once at each time."""

    def __init__(self) -> None:
        self.loop = _VirtualLoop()
        self.fired = 0

    def _fire(self) -> None:
        self.fired += 1

    def fill(self, deadlines_ms: Sequence[int]) -> list[Any]:
        call_at, fire = self.loop.call_at, self._fire
        return [call_at(deadline_ms / 1000, fire) for deadline_ms in deadlines_ms]

    def drain(self, moments_ms: Sequence[int]) -> int:
        for now_ms in moments_ms:
            self.loop.now_s = now_ms / 1000
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        return self.fired

    def close(self) -> None:
        self.loop.close()


class Uvloop:
    """A timer over `loop.call_at` of uvloop, which reads libuv's clock. So it cannot run on virtual time."""

    def __init__(self) -> None:
        import uvloop

        self.loop = uvloop.new_event_loop()

    def fill(self, deadlines_ms: Sequence[int]) -> list[Any]:
        call_at, start_s = self.loop.call_at, self.loop.time() + 3600
        return [call_at(start_s + deadline_ms / 1000, TASK) for deadline_ms in deadlines_ms]

    def close(self) -> None:
        self.loop.close()


class Kombu:
    """Celery's ETA heap, `kombu.asynchronous.timer.Timer`. Cancelled entries stay until their deadline."""

    def __init__(self) -> None:
        from kombu.asynchronous.timer import Timer

        self.timer = Timer()
        self.now_s = 0.0
        self.due = self.timer.__iter__(nowfun=self._now)

    def _now(self) -> float:
        return self.now_s

    def fill(self, deadlines_ms: Sequence[int]) -> list[Any]:
        call_at = self.timer.call_at
        return [call_at(deadline_ms / 1000, TASK) for deadline_ms in deadlines_ms]

    def drain(self, moments_ms: Sequence[int]) -> int:
        fired = 0
        for now_ms in moments_ms:
            self.now_s = now_ms / 1000
            for _, entry in self.due:
                if entry is None:
                    break
                fired += 1
        return fired

    def close(self) -> None:
        self.timer.clear()


class Sched:
    """The standard library's `sched.scheduler`. Its `cancel` is O(n) and is not measured."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.fired = 0
        self.scheduler = sched.scheduler(lambda: self.now_ms, lambda _: None)

    def _fire(self) -> None:
        self.fired += 1

    def fill(self, deadlines_ms: Sequence[int]) -> list[Any]:
        enterabs, fire = self.scheduler.enterabs, self._fire
        return [enterabs(deadline_ms, 0, fire) for deadline_ms in deadlines_ms]

    def drain(self, moments_ms: Sequence[int]) -> int:
        for now_ms in moments_ms:
            self.now_ms = now_ms
            self.scheduler.run(blocking=False)
        return self.fired

    def close(self) -> None:
        """There is nothing to close."""


def _handed(core: str) -> Handed:
    return Handed(CORES[core]())


# The subjects by their names in tables and plots. A core that is absent is not measured, and misses its gates.
SUBJECTS: dict[str, Callable[[], Any]] = {
    **{f"wheel, {core}": partial(_handed, core) for core in sorted(CORES)},
    "heapq": lambda: Handed(LazyHeap()),
    "kombu": Kombu,
    "asyncio": AsyncioLoop,
    "uvloop": Uvloop,
    "sched": Sched,
    "Kafka's structure": lambda: Handed(KafkaStructure()),
    "handle only": lambda: Filled(HandleOnly()),
}
# Subjects with `schedule`, `cancel` and `advance`, which run the programs with 90 % cancelled.
MIXED = (*(f"wheel, {core}" for core in sorted(CORES)), "heapq", "Kafka's structure", "handle only")
