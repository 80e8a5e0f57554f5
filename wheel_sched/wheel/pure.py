"""The hierarchical timing wheel: who is due at which tick, and nothing else.

Kafka's `TimingWheel` (after Varghese and Lauck, SOSP 1987, scheme 7) as a core without clock, lock, thread or
callback: `now` is an argument, time is whole milliseconds, and what is due is returned.

    level 0   slots of tick_ms                  up to the end of the block the clock is in
    level n   slots of tick_ms * wheel_size**n  from there to the end of the enclosing block, and so on without limit

Invariants. Levels are aligned and follow each other without overlap, so where a tick belongs depends on nothing but
the clock: entries of one tick always share one slot, a slot is emptied into the levels below before anything can be
placed there directly, and FIFO inside a tick follows. Deadlines round up to a tick and now rounds down: never early.
A deadline at or before the clock joins the tick being handed out. Exempt from FIFO is an entry moved by `touch`: it
joins its new tick when it is relocated.

What lies beyond the horizon is not filed: one insertion-ordered dict holds it, because most timers are cancelled long
before they are near. When the clock comes to the horizon, it is moved to the lower quartile of a sample of what waits
there (so that one far timer does not decide it) and all before it is sorted into the run, a dict from which the next
one due is popped at the end. The levels hold what is scheduled before the horizon after that, so of one tick the run's
entries are the older ones: FIFO holds, and what is filed is always earlier than what is not.

Cost. A slot is Kafka's `TimerTaskList`, an insertion-ordered `dict[entry, None]` keyed by its absolute number, and
each level keeps an int heap of its slots. Schedule and cancel are O(1) apart from the heap push of a new slot;
an entry moves down at most once per level. A slot emptied by cancels costs some 200 bytes until the clock passes it,
and there are never more than `wheel_size` of them per level. `next_expiry` may scan one slot of a far level, once.

Threads. None of it is thread-safe: one owner calls everything, `repr` included.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, TypeVar

from wheel_sched.wheel.arguments import batch_limit, check_shape, whole
from wheel_sched.wheel.pure_entry import TimerTaskEntry, TimerTaskList
from wheel_sched.wheel.states import EntryState, WheelCounters

T = TypeVar("T")


_RUNNING: Final = EntryState.RUNNING
_FIRED: Final = EntryState.FIRED
_NO_LIMIT: Final = sys.maxsize
_SAMPLE: Final = 64  # deadlines looked at to choose a horizon

_deadline_of: Final[Callable[[Any], int]] = attrgetter("_deadline_ms")


class _Level(Generic[T]):
    """One level: its slots by absolute number (tick >> shift), and where its range ends (a tick, exclusive)."""

    __slots__ = ("end", "heap", "shift", "slots")

    def __init__(self, shift: int, end: int) -> None:
        self.shift = shift
        self.end = end
        self.slots: dict[int, TimerTaskList[T]] = {}
        self.heap: list[int] = []  # the keys of `slots`, each once


class TimingWheel(Generic[T]):
    """Tasks by deadline.

    Args:
        now_ms: where time starts. Defaults to 0.
        tick_ms: width of a slot of the lowest level; deadlines round up to it. Defaults to 1.
        wheel_size: slots per level, a power of two of at least 2. Defaults to 4096: with ticks of 1 ms the levels
            reach 4 s, 4.7 h and 2.2 years, so that an entry moves twice at most, and most never do.

    Raises:
        ConfigError: all that is wrong with the arguments.
    """

    # Whether a call is one step, so that any thread may make it, and a finalizer in the midst of another.
    any_thread: ClassVar[bool] = False

    def __init__(self, now_ms: int = 0, *, tick_ms: int = 1, wheel_size: int = 4096) -> None:
        check_shape(now_ms, tick_ms, wheel_size)
        self._tick_ms = tick_ms
        self._wheel_size = wheel_size
        self._bits = wheel_size.bit_length() - 1
        self._clock = now_ms // tick_ms  # the tick handed out last; every earlier one is empty
        self._pending = 0
        self._near = self._level(0)
        self._far: list[_Level[T]] = []
        self._far_start = sys.maxsize  # no slot of a far level begins before it
        self._unfiled: TimerTaskList[T] = {}
        self._set_horizon(self._near.end)
        # By tick, the next one to be handed out last: popitem() then takes it in O(1), where a walk from the front
        # would step over all that were taken before. Holds what has been filed, and what a limit left of a slot.
        self._run: TimerTaskList[T] = {}
        self._run_tick = 0  # nothing in the run comes before it
        # The earliest entry of the far levels and its tick. -1 = unknown; stale once the entry left or was touched.
        self._far_head: TimerTaskEntry[T] | None = None
        self._far_tick = -1
        self._cascades = self._relocations = 0
        self._productive_wakeups = self._empty_wakeups = 0

    @property
    def now_ms(self) -> int:
        """The wheel's clock: the tick handed out last. It moves in `advance` only, and never back."""
        return self._clock * self._tick_ms

    @property
    def tick_ms(self) -> int:
        """Width of a slot of the lowest level."""
        return self._tick_ms

    @property
    def counters(self) -> WheelCounters:
        """What was done and what waits where, counted on demand: O(slots and entries beyond the horizon)."""
        levels = [sum(map(len, level.slots.values())) for level in (self._near, *self._far)]
        for entry in chain(self._run, self._unfiled):
            differing = max(-(-entry._deadline_ms // self._tick_ms), self._clock) ^ self._clock
            number = max(differing.bit_length() - 1, 0) // self._bits
            levels += [0] * (number + 1 - len(levels))
            levels[number] += 1
        while len(levels) > 1 and not levels[-1]:
            levels.pop()
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
        """Hold `task` until `deadline_ms`; a deadline that has passed is due at once.

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
        # What `_place` does, in line and without max(): the calls would add a quarter to the cost.
        if deadline_ms > self._filed_ms:
            entry._slot = slot = self._unfiled
            slot[entry] = None
            return entry
        tick = deadline_ms if self._tick_ms == 1 else -(-deadline_ms // self._tick_ms)
        level = self._near
        if tick < level.end:
            number = tick if tick > self._clock else self._clock
        else:
            for level in self._far:
                if tick < level.end:
                    break
            else:
                level = self._grow(tick)
            number = tick >> level.shift
            if number << level.shift < self._far_start:
                self._far_start = number << level.shift
            if tick < self._far_tick:
                self._far_tick = tick
                self._far_head = entry
        found = level.slots.get(number)
        if found is None:
            found = level.slots[number] = {}
            heappush(level.heap, number)
        found[entry] = None
        entry._slot = found
        return entry

    def entry(self, task: T) -> TimerTaskEntry[T]:
        """An entry that waits for nothing yet, as one that has fired: `reschedule` arms it.

        For callers who must know the entry before it can be handed out.
        """
        entry: TimerTaskEntry[T] = TimerTaskEntry()
        entry._task = task
        entry._deadline_ms = 0
        entry._wheel = self
        entry._slot = _FIRED
        return entry

    def advance(self, now_ms: int, limit: int | None = None) -> list[TimerTaskEntry[T]]:
        """Move the clock to `now_ms` and hand out what is due, by deadline, first come first served inside a tick.

        With a `limit` the clock stops at the tick of the last entry handed out; call again with the same now for
        the rest, until less than `limit` comes back. What is cancelled or postponed in between is not handed out;
        what is scheduled for now or earlier in between comes with a later call. A now that went back is taken as
        the clock's. The limit bounds what is handed out, not the moves between levels on the way.

        Raises:
            Rejected: `now_ms` is not an int or `limit` is not a positive one; nothing was handed out.
        """
        if type(now_ms) is not int:
            now_ms = whole("now_ms", now_ms)
        limit = _NO_LIMIT if limit is None else batch_limit(limit)
        near = self._near
        heap = near.heap
        target = now_ms // self._tick_ms
        if target < self._clock:
            target = self._clock
        due: list[TimerTaskEntry[T]] = []
        while len(due) < limit:
            if self._run and self._run_tick <= target and self._take_run(target, limit, due):
                continue
            if heap and heap[0] <= target:
                self._clock = tick = heappop(heap)
                entries = list(near.slots.pop(tick))
                room = limit - len(due)
                for entry in reversed(entries[room:]):
                    self._run[entry] = self._run_tick = tick
                    entry._slot = self._run
                for entry in entries[:room]:
                    if entry._deadline_ms <= tick * self._tick_ms:
                        entry._slot = _RUNNING
                        due.append(entry)
                    else:  # touched
                        self._relocations += 1
                        self._place(entry)
            elif self._far_start <= target and not heap and self._refill(target):
                continue
            elif self._unfiled and self._horizon <= target:
                self._file(target)
            elif target < near.end and target < self._horizon:
                self._clock = target
                break
            else:
                self._forward(target)
                break
        self._pending -= len(due)
        if due:
            self._productive_wakeups += 1
        else:
            self._empty_wakeups += 1
        return due

    def next_expiry(self) -> int | None:
        """The ms at which `advance` would next hand something out, exactly; at once if not after `now_ms`.

        None when nothing waits. Postponed entries found at the head are moved to where they belong.
        """
        tick_ms, near = self._tick_ms, self._near
        while True:
            ticks: list[int] = []
            while self._run:
                entry, tick = self._run.popitem()
                if entry._deadline_ms <= tick * tick_ms:
                    self._run[entry] = tick
                    ticks.append(tick)
                    break
                self._relocations += 1
                self._place(entry)
            while near.heap:
                slot = near.slots[near.heap[0]]
                if self._holds_due(slot, near.heap[0]):
                    ticks.append(near.heap[0])
                    break
                del near.slots[heappop(near.heap)]
            else:
                far_tick = self._far_expiry()
                if far_tick is not None:
                    ticks.append(far_tick)
            if ticks:
                return min(ticks) * tick_ms
            if not self._unfiled:
                return None
            self._file(self._clock)

    def snapshot(self) -> list[tuple[int, T]]:
        """All that waits as (deadline_ms, task), in the order it would be handed out."""
        return [(entry._deadline_ms, entry._task) for entry in self._waiting()]  # type: ignore[misc]  # waiting: has a task

    def restore(self, pending: Iterable[tuple[int, T]]) -> list[TimerTaskEntry[T]]:
        """Schedule what a `snapshot` or `clear` answered, all or nothing; answers the new entries in that order.

        Raises:
            Rejected: a deadline is not an int; nothing was scheduled.
        """
        checked = [(whole("deadline_ms", deadline_ms), task) for deadline_ms, task in pending]
        return [self.schedule(task, deadline_ms) for deadline_ms, task in checked]

    def clear(self) -> list[tuple[int, T]]:
        """Cancel all that waits and answer it as `snapshot` does. The clock and the counters of work done stay."""
        pending = self.snapshot()
        for entry in self._waiting():
            entry.cancel()
        self._emptied()
        return pending

    def _place(self, entry: TimerTaskEntry[T]) -> None:
        """Put an entry where its deadline belongs. The caller counts it and has taken it from its old slot."""
        tick = -(-entry._deadline_ms // self._tick_ms)  # rounds up
        if entry._deadline_ms > self._filed_ms:
            self._unfiled[entry] = None
            entry._slot = self._unfiled
            return
        level = self._near
        if tick < level.end:
            number = max(tick, self._clock)
        else:
            for level in self._far:
                if tick < level.end:
                    break
            else:
                level = self._grow(tick)
            number = tick >> level.shift
            if number << level.shift < self._far_start:
                self._far_start = number << level.shift
            if tick < self._far_tick:
                self._far_tick = tick
                self._far_head = entry
        slot = level.slots.get(number)
        if slot is None:
            slot = level.slots[number] = {}
            heappush(level.heap, number)
        slot[entry] = None
        entry._slot = slot

    def _level(self, shift: int) -> _Level[T]:
        """An empty level that ends with the block the clock is in."""
        block = shift + self._bits
        return _Level(shift, ((self._clock >> block) + 1) << block)

    def _grow(self, tick: int) -> _Level[T]:
        """Add levels until one reaches `tick`."""
        while True:
            level = self._level((1 + len(self._far)) * self._bits)
            self._far.append(level)
            if tick < level.end:
                return level

    def _forward(self, tick: int) -> None:
        """Set the clock, which may enter other blocks. The caller has emptied every slot that begins before."""
        self._clock = tick
        for level in (self._near, *self._far):
            if tick < level.end:
                break
            block = level.shift + self._bits
            level.end = ((tick >> block) + 1) << block
        if tick >= self._horizon:
            self._set_horizon(self._near.end)  # nothing lies beyond: else it would have been filed

    def _set_horizon(self, tick: int) -> None:
        """Every filed tick lies before it, every unfiled one at or after it."""
        self._horizon = tick
        self._filed_ms = (tick - 1) * self._tick_ms  # the last deadline before it

    def _emptied(self) -> None:
        """Give back what held the entries: the last one has left."""
        self._run.clear()
        self._unfiled.clear()
        self._set_horizon(self._near.end)
        for level in (self._near, *self._far):
            if level.heap:
                level.slots.clear()
                level.heap.clear()

    def _file(self, tick: int) -> None:
        """Move the horizon beyond `tick`, at least to the lower quartile of what waits there, and file what is before.

        Nothing filed may be left. A quarter of the entries leaves at a time, so each is looked at a few times only.
        """
        unfiled, run, tick_ms = self._unfiled, self._run, self._tick_ms
        entries = list(unfiled)
        sample = sorted([entry._deadline_ms for entry in entries[:: len(entries) // _SAMPLE + 1]])
        last_tick = max(-(-sample[len(sample) // 4] // tick_ms), tick)
        last_ms = last_tick * tick_ms
        self._set_horizon(last_tick + 1)
        near = [entry for entry in entries if entry._deadline_ms <= last_ms]
        tick_of: Callable[[TimerTaskEntry[T]], int]
        tick_of = _deadline_of if tick_ms == 1 else lambda entry: -(-entry._deadline_ms // tick_ms)
        near.sort(key=tick_of)
        near.reverse()
        run.update(zip(near, map(tick_of, near), strict=True))
        self._run_tick = tick_of(near[-1])
        for entry in near:
            del unfiled[entry]
            entry._slot = run
        self._cascades += len(near)
        if len(near) > len(unfiled):  # a dict never shrinks by itself
            rest = dict(unfiled)
            unfiled.clear()
            unfiled.update(rest)

    def _take_run(self, target: int, limit: int, due: list[TimerTaskEntry[T]]) -> bool:
        """Hand out of the run what comes before all else; False: nothing did."""
        run, near, tick_ms = self._run, self._near, self._tick_ms
        heap, end, last = near.heap, near.end, target
        if heap:
            if heap[0] < last:
                last = heap[0]
        else:
            for level in self._far:
                if level.heap:
                    last = min(last, (level.heap[0] << level.shift) - 1)
                    break
        taken = False
        while run and len(due) < limit:
            entry, tick = run.popitem()
            if tick > last:
                run[entry] = self._run_tick = tick
                break
            taken = True
            if tick < end:
                self._clock = tick
            else:
                self._forward(tick)
                end = near.end
            if entry._deadline_ms > tick * tick_ms:  # touched
                self._relocations += 1
                self._place(entry)
                break  # which may have put it before the rest
            entry._slot = _RUNNING
            due.append(entry)
        return taken

    def _refill(self, target: int) -> bool:
        """Empty the first far slot into the levels below it if it begins by `target`. Level 0 must be empty.

        Answers whether a slot went, also one that cancels had emptied: it may have held the run up.
        """
        changed = False
        for level in self._far:
            while level.heap:
                start = level.heap[0] << level.shift
                if start > target:
                    self._far_start = start
                    return changed
                slot = level.slots.pop(heappop(level.heap))
                changed = True
                if slot:
                    self._far_head = None
                    self._far_tick = -1
                    self._forward(start)
                    for entry in slot:
                        self._place(entry)
                    self._cascades += len(slot)
                    return True
        self._far_start = sys.maxsize
        return changed

    def _holds_due(self, slot: TimerTaskList[T], tick: int) -> bool:
        """Whether an entry of `slot` is due at its `tick`; postponed ones in front of it are moved."""
        slot_ms, touched = tick * self._tick_ms, []
        for entry in slot:
            if entry._deadline_ms <= slot_ms:
                break
            touched.append(entry)
        self._relocate(slot, touched)
        return bool(slot)

    def _relocate(self, slot: TimerTaskList[T], touched: list[TimerTaskEntry[T]]) -> None:
        """Move postponed entries from `slot` to where they belong, which is a later slot."""
        for entry in touched:
            del slot[entry]
            self._place(entry)
        self._relocations += len(touched)

    def _far_expiry(self) -> int | None:
        """The earliest tick waiting in the far levels, remembered until its entry leaves or is postponed."""
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
                    self._far_head = head = min(slot, key=_deadline_of)
                    self._far_tick = -(-head._deadline_ms // tick_ms)
                    return self._far_tick
                del level.slots[heappop(level.heap)]
        return None

    def _waiting(self) -> list[TimerTaskEntry[T]]:
        """All entries in the order they would be handed out."""
        entries = list(reversed(self._run))
        for level in (self._near, *self._far):
            for number in sorted(level.slots):
                entries += level.slots[number]
        entries += self._unfiled
        # Stable: a slot keeps its order. What is due at once is equal, whatever its deadline was.
        entries.sort(key=lambda entry: max(-(-entry._deadline_ms // self._tick_ms), self._clock))
        return entries
