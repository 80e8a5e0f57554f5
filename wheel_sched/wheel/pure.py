"""The hierarchical timing wheel: which tasks are due at which tick, and nothing else.

It is Kafka's `TimingWheel` (after Varghese and Lauck, SOSP 1987, scheme 7) without clock, lock, thread or callback. The
caller passes the time in whole milliseconds, and `advance` returns the due entries.

    level 0   a slot covers tick_ms                        reaches to the end of the current block of `wheel_size` ticks
    level 1   a slot covers one such block                 reaches to the end of the current span of 16 blocks
    level 2   a slot covers one such span                  reaches to the end of the current group of 256 spans
    level n   a slot covers 256 slots of the level below   and so on without limit

Invariants. Levels are aligned and follow each other without overlap, so only the clock decides where a tick belongs.
Entries of one tick always share one slot. All entries of a slot move to lower levels in one step, before a new entry
is placed there. So each tick is FIFO: first come, first served. One exception: an entry that `touch` postponed stays in
its old slot until `advance` or `next_expiry` gets there; then it becomes the last of its new tick. The wheel rounds a
deadline up to a tick and the caller's time down, so no entry is early. An overdue entry joins the clock's tick.

The run. When the clock reaches a slot above level 0, the wheel sorts the entries of the slot into the run: a dict
whose last entry is due next, so `popitem` takes it. Most timers are alone in their tick, and a slot for each of them
would cost several times as much. Entries that are already in the run are older than the entries of the slot. Entries
that callers schedule later for a tick of the run are younger, and they wait in level 0 or 1 until the wheel sorts them
in. So within one tick the entries of the run come first. Most timers never reach the run, because their owners cancel
them in their first slot.

Cost. A slot is Kafka's `TimerTaskList`: an insertion-ordered `dict[entry, None]`, found by its absolute number. Each
level keeps an int heap of its slots. Schedule and cancel are O(1), plus a heap push for a new slot. An entry is sorted
once; before that, an entry of a crowded slot above level 2 moves to a finer slot. A slot that cancels have emptied
costs some 200 bytes until the clock passes it; a level has at most `wheel_size` or 256 of them. `next_expiry` may scan
one slot of a far level (each level above level 0 is far), and remembers the result.

Threads. Nothing here is thread-safe: one owner makes all calls, `repr` included.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, TypeVar

from wheel_sched.wheel.arguments import batch_limit, check_shape, whole
from wheel_sched.wheel.pure_entry import TimerTaskEntry, TimerTaskList
from wheel_sched.wheel.states import EntryState, WheelCounters

T = TypeVar("T")


_RUNNING: Final = EntryState.RUNNING
_FIRED: Final = EntryState.FIRED
_NO_LIMIT: Final = sys.maxsize
_MIDDLE_BITS: Final = 4  # 16 blocks of the lowest level make a span
_FAR_BITS: Final = 8  # 256 slots of a far level make one slot of the next level
_FEW: Final = 1024  # a slot above level 2 with more entries is spread over finer slots before it is sorted

_deadline_of: Final[Callable[[Any], int]] = attrgetter("_deadline_ms")


class _Level(Generic[T]):
    """One level: its slots by absolute number (tick >> shift), and the end of its range (a tick, exclusive)."""

    __slots__ = ("end", "heap", "shift", "slots", "span")

    def __init__(self, shift: int, bits: int, clock: int) -> None:
        self.shift = shift
        self.span = shift + bits  # the range ends with the block of 2**span ticks that the clock is in
        self.end = ((clock >> self.span) + 1) << self.span
        self.slots: dict[int, TimerTaskList[T]] = {}
        self.heap: list[int] = []  # the keys of `slots`, each once


class TimingWheel(Generic[T]):
    """Holds tasks until their deadlines.

    Args:
        now_ms: the first value of the wheel's clock. Defaults to 0.
        tick_ms: width of a slot of the lowest level; deadlines round up to it. Defaults to 1.
        wheel_size: slots of the lowest level, a power of two of at least 2. Defaults to 4096: with ticks of 1 ms the
            levels reach 4 s, 65 s, 4.7 h and 50 days.

    Raises:
        ConfigError: with all problems of the arguments.
    """

    # Whether each call is atomic. If so, any thread may call, and so may a finalizer that runs during another call.
    any_thread: ClassVar[bool] = False

    def __init__(self, now_ms: int = 0, *, tick_ms: int = 1, wheel_size: int = 4096) -> None:
        check_shape(now_ms, tick_ms, wheel_size)
        self._tick_ms = tick_ms
        self._wheel_size = wheel_size
        self._bits = wheel_size.bit_length() - 1
        self._clock = now_ms // tick_ms  # the tick handed out last; no entry waits in an earlier one
        self._pending = 0
        self._near: _Level[T] = _Level(0, self._bits, self._clock)
        middle: _Level[T] = _Level(self._bits, _MIDDLE_BITS, self._clock)
        common: _Level[T] = _Level(middle.span, _FAR_BITS, self._clock)
        self._far = [middle, common]
        # A second index of the slots of level 2, for `schedule`. It is empty unless ticks are of 1 ms. It leaves out
        # the slot of `_far_head`: for that slot `schedule` calls `_far_slot`, which notices an earlier entry.
        self._common: dict[int, TimerTaskList[T]] = {}
        self._common_shift = common.shift
        self._far_start = math.inf  # no slot above level 0 begins before this tick
        # The run maps each entry to its tick. The next entry to hand out is the last, so `popitem` takes it in O(1); a
        # walk from the front would step over all entries taken before. The run holds entries of slots above level 0,
        # and the entries of a slot of level 0 that `advance` left because of its limit.
        self._run: TimerTaskList[T] = {}
        self._run_tick = 0  # no entry in the run has an earlier tick
        # The earliest entry above level 0 and its tick; -1 = unknown. Both are stale once that entry has left or
        # `touch` has postponed it.
        self._far_head: TimerTaskEntry[T] | None = None
        self._far_tick = -1
        self._cascades = self._relocations = 0
        self._productive_wakeups = self._empty_wakeups = 0

    @property
    def now_ms(self) -> int:
        """The wheel's clock: the ms up to which entries were handed out. Only `advance` moves it, and never back."""
        return self._clock * self._tick_ms

    @property
    def tick_ms(self) -> int:
        """Width of a slot of the lowest level."""
        return self._tick_ms

    @property
    def counters(self) -> WheelCounters:
        """The counters of work done, and the number of waiting entries per level. A call may cost O(entries)."""
        clock, levels = self._clock, [0]
        held = [(max(-(-entry._deadline_ms // self._tick_ms), clock), 1) for entry in self._run]
        for level in (self._near, *self._far):
            held += [(number << level.shift, len(slot)) for number, slot in level.slots.items() if slot]
        for tick, count in held:  # the first tick of a slot decides the level of its entries
            number = max((tick ^ clock).bit_length() - 1, 0) // self._bits
            levels += [0] * (number + 1 - len(levels))
            levels[number] += count
        moves = self._cascades, self._relocations
        return WheelCounters(self._pending, tuple(levels), *moves, self._productive_wakeups, self._empty_wakeups)

    def __len__(self) -> int:
        return self._pending

    def __repr__(self) -> str:
        expiry_ms = self.next_expiry()
        due = "none" if expiry_ms is None else f"{expiry_ms - self.now_ms:+}ms"
        return (
            f"<TimingWheel pending={self._pending} now={self.now_ms}ms next={due}"
            f" tick={self._tick_ms}ms size={self._wheel_size} levels={len(self.counters.levels)}>"
        )

    def schedule(self, task: T, deadline_ms: int) -> TimerTaskEntry[T]:
        """Hold `task` until `deadline_ms`. If that time has passed, the task is due at once.

        Raises:
            Rejected: `deadline_ms` is not an int; nothing was scheduled.
        """
        if type(deadline_ms) is not int:
            deadline_ms = whole("deadline_ms", deadline_ms)
        entry: TimerTaskEntry[T] = TimerTaskEntry()
        entry._task = task
        entry._deadline_ms = deadline_ms
        entry._wheel = self
        self._pending += 1
        # The body of `_place`, inlined: its calls would make `schedule` cost a quarter more.
        slot = self._common.get(deadline_ms >> self._common_shift)  # most entries go to level 2
        if slot is None:
            tick = deadline_ms if self._tick_ms == 1 else -(-deadline_ms // self._tick_ms)
            level = self._near
            if tick < level.end:
                number = tick if tick > self._clock else self._clock
                slot = level.slots.get(number)
                if slot is None:
                    slot = level.slots[number] = {}
                    heappush(level.heap, number)
            else:
                slot = self._far_slot(entry, tick)
        entry._slot = slot
        slot[entry] = None
        return entry

    def entry(self, task: T) -> TimerTaskEntry[T]:
        """An entry that does not wait yet; its state is FIRED. `reschedule` makes it wait.

        Use it if you need the entry before the wheel can hand it out.
        """
        entry: TimerTaskEntry[T] = TimerTaskEntry()
        entry._task = task
        entry._deadline_ms = 0
        entry._wheel = self
        entry._slot = _FIRED
        return entry

    def advance(self, now_ms: int, limit: int | None = None) -> list[TimerTaskEntry[T]]:
        """Move the clock to `now_ms` and hand out the due entries, by deadline, first come first served inside a tick.

        If it hands out `limit` entries, the clock stops at the tick of the last one. Call again with the same `now_ms`
        for the others, until a call returns fewer entries than `limit`. The wheel does not hand out an entry that
        was cancelled or postponed between two calls. If an entry is scheduled between two calls for `now_ms` or
        earlier, a later call hands it out. A `now_ms` before the clock counts as the clock's time. The limit does not
        bound how many entries move between levels.

        Raises:
            Rejected: `now_ms` is not an int or `limit` is not a positive one; nothing was handed out.
        """
        if type(now_ms) is not int:
            now_ms = whole("now_ms", now_ms)
        most = _NO_LIMIT if limit is None else batch_limit(limit)
        near, run, tick_ms = self._near, self._run, self._tick_ms
        heap = near.heap
        target = now_ms if tick_ms == 1 else now_ms // tick_ms
        if target < self._clock:
            target = self._clock
        due: list[TimerTaskEntry[T]] = []
        while True:
            if run and self._run_tick <= target:
                last = target if not heap or target < heap[0] else heap[0]
                if self._far_start <= last and not heap:
                    last = int(self._far_start) - 1
                if self._take_run(last, most, due):
                    if len(due) == most:
                        break
                    continue
            if heap and heap[0] <= target:
                self._clock = tick = heappop(heap)
                entries = list(near.slots.pop(tick))
                room = most - len(due)
                for entry in reversed(entries[room:]):
                    run[entry] = self._run_tick = tick
                    entry._slot = run
                for entry in entries[:room]:
                    if entry._deadline_ms <= tick * tick_ms:
                        entry._slot = _RUNNING
                        due.append(entry)
                    else:  # postponed by `touch`
                        self._relocations += 1
                        self._place(entry)
                if len(due) == most:
                    break
            elif self._far_start > target or not self._refill(target):
                self._forward(target)
                break
        self._pending -= len(due)
        if due:
            self._productive_wakeups += 1
        else:
            self._empty_wakeups += 1
        return due

    def next_expiry(self) -> int | None:
        """The exact ms at which `advance` would next hand out an entry, or None when no entry waits.

        If the result is `now_ms` or earlier, an entry is due now. The search moves each entry that `touch` postponed to
        the slot of its new deadline.
        """
        tick_ms, near, run = self._tick_ms, self._near, self._run
        first: int | None = None
        while run:
            entry, tick = run.popitem()
            if entry._deadline_ms <= tick * tick_ms:
                run[entry] = self._run_tick = first = tick
                break
            self._relocations += 1
            self._place(entry)
        while near.heap and (first is None or near.heap[0] < first):
            if self._holds_due(near.slots[near.heap[0]], near.heap[0]):
                return near.heap[0] * tick_ms
            del near.slots[heappop(near.heap)]
        if first is None or self._far_start < first:
            far_tick = self._far_expiry()
            if far_tick is not None and (first is None or far_tick < first):
                return far_tick * tick_ms
        return None if first is None else first * tick_ms

    def snapshot(self) -> list[tuple[int, T]]:
        """All waiting tasks as (deadline_ms, task), in the order in which the wheel would hand them out."""
        return [(entry._deadline_ms, entry._task) for entry in self._waiting()]  # type: ignore[misc]  # waiting: has a task

    def restore(self, pending: Iterable[tuple[int, T]]) -> list[TimerTaskEntry[T]]:
        """Schedule the tasks that `snapshot` or `clear` returned, all or nothing. Returns the new entries in order.

        Raises:
            Rejected: a deadline is not an int; nothing was scheduled.
        """
        checked = [(whole("deadline_ms", deadline_ms), task) for deadline_ms, task in pending]
        return [self.schedule(task, deadline_ms) for deadline_ms, task in checked]

    def clear(self) -> list[tuple[int, T]]:
        """Cancel all waiting entries, and return what `snapshot` would. Keeps the clock and the counters of work."""
        pending = self.snapshot()
        for entry in self._waiting():
            entry.cancel()
        self._emptied()
        return pending

    def _place(self, entry: TimerTaskEntry[T]) -> None:
        """Put an entry into the slot of its deadline. It is in no slot now, but `_pending` counts it."""
        tick = -(-entry._deadline_ms // self._tick_ms)  # rounds up
        near = self._near
        if tick < near.end:
            number = max(tick, self._clock)
            slot = near.slots[number] if number in near.slots else self._add(near, number)
        else:
            slot = self._far_slot(entry, tick)
        slot[entry] = None
        entry._slot = slot

    def _far_slot(self, entry: TimerTaskEntry[T], tick: int) -> TimerTaskList[T]:
        """Return the slot of `tick` above level 0, or a new slot for it. The caller puts `entry` there."""
        for level in self._far:
            if tick < level.end:
                break
        else:
            level = self._grow(tick)
        number = tick >> level.shift
        slot = level.slots[number] if number in level.slots else self._add(level, number)
        if tick < self._far_tick:
            self._set_far_head(entry, tick, level, number)
        return slot

    def _set_far_head(self, entry: TimerTaskEntry[T], tick: int, level: _Level[T], number: int) -> None:
        self._far_head = entry
        self._far_tick = tick
        if level.shift == self._common_shift:
            self._common.pop(number, None)  # so that `schedule` notices an earlier entry

    def _add(self, level: _Level[T], number: int) -> TimerTaskList[T]:
        """Add a new slot with this absolute number to a level, and return the slot."""
        slot = level.slots[number] = {}
        heappush(level.heap, number)
        if level.shift == self._common_shift and self._tick_ms == 1:
            self._common[number] = slot
        if level is not self._near and number << level.shift < self._far_start:
            self._far_start = number << level.shift
        return slot

    def _remove(self, level: _Level[T]) -> TimerTaskList[T]:
        """Remove the earliest slot from a level above level 0, and return the slot."""
        number = heappop(level.heap)
        if level.shift == self._common_shift:
            self._common.pop(number, None)
        return level.slots.pop(number)

    def _grow(self, tick: int) -> _Level[T]:
        """Add levels until one reaches `tick`. Returns this level."""
        while True:
            level: _Level[T] = _Level(self._far[-1].span, _FAR_BITS, self._clock)
            self._far.append(level)
            if tick < level.end:
                return level

    def _forward(self, tick: int) -> None:
        """Move the clock to `tick`, and the ends of the levels with it. The caller has emptied all earlier slots."""
        self._clock = tick
        if tick < self._near.end:
            return
        for level in (self._near, *self._far):
            if tick < level.end:
                break
            level.end = ((tick >> level.span) + 1) << level.span

    def _emptied(self) -> None:
        """Free the memory of the slots, after the last entry has left."""
        self._run.clear()
        self._common.clear()
        for level in (self._near, *self._far):
            if level.heap:
                level.slots.clear()
                level.heap.clear()
        self._far_start = math.inf

    def _take_run(self, last: int, most: int, due: list[TimerTaskEntry[T]]) -> bool:
        """Move entries of `_run` up to the tick `last` to `due`, until `due` has `most`. False: `_run` has none.

        The call ends when it has moved a postponed entry to its new slot: the entry may be due before the next one."""
        run, tick_ms = self._run, self._tick_ms
        taken = -1
        touched: TimerTaskEntry[T] | None = None
        while run:
            entry, tick = run.popitem()
            if tick > last:
                run[entry] = self._run_tick = tick
                break
            taken = tick
            if entry._deadline_ms > tick * tick_ms:
                touched = entry
                break
            entry._slot = _RUNNING
            due.append(entry)
            if len(due) == most:
                break
        if taken < 0:
            return False
        self._forward(taken)
        if touched is not None:
            self._relocations += 1
            self._place(touched)
        return True

    def _refill(self, target: int) -> bool:
        """Empty the earliest slot above level 0 if it begins by `target`: its entries join `_run` or finer slots.

        If it begins later, set `_far_start` to its first tick. From then on `advance` takes only earlier entries from
        `_run`. Level 0 must be empty. Returns whether a slot was emptied or `_far_start` has another value.
        """
        before = self._far_start
        for level in self._far:
            while level.heap:
                number = level.heap[0]
                start = number << level.shift
                if start > target:
                    self._far_start = start
                    return start != before
                slot = self._remove(level)
                if slot:
                    self._far_head = None
                    self._far_tick = -1
                    self._forward(start)
                    self._cascades += len(slot)
                    if len(slot) > _FEW and level.shift > self._common_shift:
                        for entry in list(slot):
                            self._place(entry)
                    else:
                        self._sort_in(slot, start + (1 << level.shift) - 1)
                    return True
        self._far_start = math.inf
        return before != math.inf

    def _sort_in(self, slot: TimerTaskList[T], last: int) -> None:
        """Merge the entries of `slot` into the sorted dict `_run`. `last`: the last tick of the slot."""
        run, tick_ms, last_ms = self._run, self._tick_ms, last * self._tick_ms
        entries = []
        while run:
            entry, tick = run.popitem()
            if tick > last:
                run[entry] = self._run_tick = tick
                break
            entries.append(entry)
        entries += slot  # the slot's entries are younger
        touched = [entry for entry in entries if entry._deadline_ms > last_ms]
        if touched:
            entries = [entry for entry in entries if entry._deadline_ms <= last_ms]
        if entries:
            tick_of: Callable[[TimerTaskEntry[T]], int]
            tick_of = _deadline_of if tick_ms == 1 else lambda entry: -(-entry._deadline_ms // tick_ms)
            entries.sort(key=tick_of)
            self._run_tick = tick_of(entries[0])
            entries.reverse()
            run.update(zip(entries, map(tick_of, entries), strict=True))
            for entry in entries:
                entry._slot = run
        for entry in touched:
            self._place(entry)
        self._relocations += len(touched)

    def _holds_due(self, slot: TimerTaskList[T], tick: int) -> bool:
        """Whether `slot` has an entry due at `tick`. Postponed entries before the first due one move to later slots."""
        slot_ms, touched = tick * self._tick_ms, []
        for entry in slot:
            if entry._deadline_ms <= slot_ms:
                break
            touched.append(entry)
        self._relocate(slot, touched)
        return bool(slot)

    def _relocate(self, slot: TimerTaskList[T], touched: list[TimerTaskEntry[T]]) -> None:
        """Move postponed entries from `slot` to the later slots of their deadlines."""
        for entry in touched:
            del slot[entry]
            self._place(entry)
        self._relocations += len(touched)

    def _far_expiry(self) -> int | None:
        """The earliest tick of an entry above level 0; None: no entry. The wheel remembers the tick and the entry."""
        tick_ms, head = self._tick_ms, self._far_head
        if head is not None and type(head._slot) is dict and -(-head._deadline_ms // tick_ms) == self._far_tick:
            return self._far_tick
        for level in self._far:
            while level.heap:
                number = level.heap[0]
                slot = level.slots[number]
                last_ms = (((number + 1) << level.shift) - 1) * tick_ms
                self._relocate(slot, [entry for entry in slot if entry._deadline_ms > last_ms])
                if slot:
                    head = min(slot, key=_deadline_of)
                    self._set_far_head(head, -(-head._deadline_ms // tick_ms), level, number)
                    return self._far_tick
                self._remove(level)
        return None

    def _waiting(self) -> list[TimerTaskEntry[T]]:
        """All entries in the order in which they would be handed out."""
        entries = list(reversed(self._run))
        for level in (self._near, *self._far):
            for number in sorted(level.slots):
                entries += level.slots[number]
        # A stable sort keeps the order of a slot. Entries that are due now compare equal, whatever their deadlines.
        entries.sort(key=lambda entry: max(-(-entry._deadline_ms // self._tick_ms), self._clock))
        return entries
