"""Kafka's timer with Kafka's data structures: linked `TimerTaskList`s, wheels of 20 slots, a queue of buckets.

This is a literal port of `org.apache.kafka.server.util.timer` (`TimingWheel`, `TimerTaskList`, `TimerTaskEntry`,
`SystemTimer`) to virtual time, without threads and locks. Tests and benchmarks compare our wheel with this port, which
keeps two properties of Kafka's timer: it rounds deadlines down, so a timer may fire up to a tick early, and of two
timers of one tick the older one may come second. The delay queue of buckets is a heap of (expiration, bucket), as
inside a `DelayQueue`.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any


class TimerTaskEntry:
    """A node of a bucket's list."""

    __slots__ = ("expiration_ms", "list", "next", "prev", "task")

    def __init__(self, task: Any, expiration_ms: int) -> None:
        self.task = task
        self.expiration_ms = expiration_ms
        self.list: TimerTaskList | None = None
        self.next: TimerTaskEntry | None = None
        self.prev: TimerTaskEntry | None = None

    def cancel(self) -> None:
        """Do what Kafka's `TimerTask.cancel` does."""
        self.remove()
        self.task = None

    def remove(self) -> None:
        """Remove the entry from its bucket, if it is in one."""
        if self.list is not None:
            self.list.remove(self)


class TimerTaskList:
    """A bucket: a circular list with a sentinel."""

    __slots__ = ("counter", "expiration_ms", "number", "root")

    def __init__(self, counter: list[int], number: int) -> None:
        self.counter = counter  # Kafka's AtomicInteger, shared by all buckets
        self.number = number  # breaks ties in the queue
        self.expiration_ms = -1
        root = self.root = TimerTaskEntry(None, -1)
        root.next = root.prev = root

    def set_expiration(self, expiration_ms: int) -> bool:
        """Set the expiration. Returns whether it has changed."""
        changed = self.expiration_ms != expiration_ms
        self.expiration_ms = expiration_ms
        return changed

    def add(self, entry: TimerTaskEntry) -> None:
        """Append the entry."""
        entry.remove()
        root = self.root
        tail = root.prev
        assert tail is not None
        entry.next, entry.prev, entry.list = root, tail, self
        tail.next = root.prev = entry
        self.counter[0] += 1

    def remove(self, entry: TimerTaskEntry) -> None:
        """Remove the entry."""
        following, before = entry.next, entry.prev
        assert following is not None
        assert before is not None
        following.prev, before.next = before, following
        entry.next = entry.prev = entry.list = None
        self.counter[0] -= 1

    def flush(self) -> list[TimerTaskEntry]:
        """Empty the bucket. Returns its entries in order."""
        entries = []
        while (head := self.root.next) is not self.root:
            assert head is not None
            self.remove(head)
            entries.append(head)
        self.expiration_ms = -1
        return entries


class TimingWheel:
    """One level of the timer. The level makes the next level when a timer does not fit into its own slots."""

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: int, timer: SystemTimer) -> None:
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.interval_ms = tick_ms * wheel_size
        self.current_ms = start_ms - start_ms % tick_ms
        self.timer = timer
        self.overflow: TimingWheel | None = None
        self.buckets = [TimerTaskList(timer.counter, timer.next_number()) for _ in range(wheel_size)]

    def add(self, entry: TimerTaskEntry) -> bool:
        """Put the entry into a bucket. Returns False, and does nothing, if the entry has expired."""
        expiration_ms = entry.expiration_ms
        if expiration_ms < self.current_ms + self.tick_ms:
            return False
        if expiration_ms < self.current_ms + self.interval_ms:
            virtual_id = expiration_ms // self.tick_ms
            bucket = self.buckets[virtual_id % self.wheel_size]
            bucket.add(entry)
            if bucket.set_expiration(virtual_id * self.tick_ms):
                heappush(self.timer.queue, (bucket.expiration_ms, bucket.number, bucket))
            return True
        if self.overflow is None:
            self.overflow = TimingWheel(self.interval_ms, self.wheel_size, self.current_ms, self.timer)
        return self.overflow.add(entry)

    def advance_clock(self, now_ms: int) -> None:
        """Move the clock of this level and of the levels above."""
        if now_ms >= self.current_ms + self.tick_ms:
            self.current_ms = now_ms - now_ms % self.tick_ms
            if self.overflow is not None:
                self.overflow.advance_clock(self.current_ms)


class SystemTimer:
    """The timer over the levels. Time passes only in `advance`."""

    def __init__(self, now_ms: int = 0, *, tick_ms: int = 1, wheel_size: int = 20) -> None:
        self.counter = [0]
        self.queue: list[tuple[int, int, TimerTaskList]] = []
        self._numbers = 0
        self._due: list[TimerTaskEntry] = []
        self.wheel = TimingWheel(tick_ms, wheel_size, now_ms, self)

    def next_number(self) -> int:
        """Return the number for the next new bucket."""
        self._numbers += 1
        return self._numbers

    def __len__(self) -> int:
        return self.counter[0]

    def schedule(self, task: Any, deadline_ms: int) -> TimerTaskEntry:
        """Do what Kafka's `add` does, but return a handle."""
        entry = TimerTaskEntry(task, deadline_ms)
        if not self.wheel.add(entry):
            self._due.append(entry)
        return entry

    def advance(self, now_ms: int) -> list[TimerTaskEntry]:
        """Do what Kafka's `advanceClock` does, until no bucket is left that has expired by `now_ms`.

        Returns the due entries.
        """
        while self.queue and self.queue[0][0] <= now_ms:
            expiration_ms, _, bucket = heappop(self.queue)
            self.wheel.advance_clock(expiration_ms)
            for entry in bucket.flush():
                if not self.wheel.add(entry):
                    self._due.append(entry)
        due, self._due = self._due, []
        return [entry for entry in due if entry.task is not None]
