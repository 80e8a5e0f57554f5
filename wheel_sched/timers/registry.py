"""The timer registry: every decision about timers, without a thread and without an event loop.

The registry holds handles (`handle.py` has their states), their keys, and two deadline queues: one for monotonic time,
and one for the wall clock, made when a timer first waits for it. The facade (a `SystemTimer` or `AsyncTimer`) takes
the `due` handles, calls `start`, the callback and `finish` for each one, and sleeps until `next_ms`.

Invariant: a PENDING handle is in one of three places: the inbox, a deadline queue, or `_handed_out` (due, and given to
the facade). `start` and `cancel` run under the facade's lock, so at each firing either the callback or `cancel` wins.

Threads: all methods run under the facade's lock. Two ways to schedule need no lock. Any thread may append to `inbox`.
If each call on the queue is atomic (`DeadlineQueue.any_thread`), any thread may also call `new_entry` and then
`reschedule` on that entry; this skips the inbox. A finalizer may run anywhere, so it may call `cancel` while its thread
works on a queue. The registry then changes only the handle, frees its key, and puts a queued handle into the inbox.
Later `drain_inbox` changes the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from itertools import zip_longest
from typing import Any, Final

from wheel_sched.clock import Clock
from wheel_sched.timers.deadlines import coalesced
from wheel_sched.timers.handle import PendingTimer, TimerHandle
from wheel_sched.timers.queue import NS_PER_MS, DeadlineQueue, deadline_after
from wheel_sched.wheel import EntryState

_PENDING: Final = EntryState.PENDING
_RUNNING: Final = EntryState.RUNNING
_FIRED: Final = EntryState.FIRED
_CANCELLED: Final = EntryState.CANCELLED

LATE_MS = 100  # a timer that is handed out so long after its time counts as late

WALL_CHECK_MS = 1000  # how long a step of the wall clock may go unnoticed while a timer waits for that clock


class TimerRegistry:
    """The handles and deadline queues of one `SystemTimer` or `AsyncTimer`.

    Args:
        clock: monotonic and wall time.
        lock: the facade's lock.
        look_by: called after a deadline was set, with the monotonic ms by which the facade must look for due timers.
            The caller holds the lock.
        tick_ms, wheel_size: see `DeadlineQueue`.
    """

    def __init__(
        self,
        clock: Clock,
        lock: AbstractContextManager[Any],
        look_by: Callable[[int], None],
        *,
        tick_ms: int,
        wheel_size: int,
    ) -> None:
        self.inbox: deque[TimerHandle] = deque()
        self.keys: dict[Hashable, TimerHandle] = {}
        self.lock = lock
        self.closed = False
        self.left_in_parent = False  # this process is a fork's child: the parent runs these timers
        self.late = self.late_max_ms = 0  # only of timers on monotonic time: the wall clock may step
        self._clock = clock
        self._look_by = look_by
        self._shape = {"tick_ms": tick_ms, "wheel_size": wheel_size}
        self._queue: DeadlineQueue[TimerHandle] = DeadlineQueue(clock.monotonic_ms(), **self._shape)
        self._rounding_ms = tick_ms - 1
        self.new_entry = self._queue.new_entry
        self._wall_queue: DeadlineQueue[TimerHandle] | None = None
        self._handed_out: dict[TimerHandle, None] = {}
        self._busy = False  # True while a queue works: any call then comes from a finalizer on the same thread

    def __len__(self) -> int:
        """The exact number of timers that wait for a run. The caller holds the lock."""
        self.drain_inbox()
        return len(self._queue) + (0 if self._wall_queue is None else len(self._wall_queue)) + len(self._handed_out)

    def now_ms(self, handle: TimerHandle) -> int:
        """The current time in ms, by the clock of the handle's deadline (monotonic or wall)."""
        return self._clock.wall_ms() if handle._wall else self._clock.monotonic_ms()

    def drain_inbox(self) -> None:
        """Empty the inbox: add its waiting handles to their queues, and remove its cancelled handles from the queues.

        Has no effect when a finalizer calls it while its thread works on a queue.
        """
        if self._busy:
            return
        inbox, schedule = self.inbox, self._queue.schedule
        for _ in range(len(inbox)):
            handle = inbox.popleft()
            if (
                handle._entry is None
                and handle._state is _PENDING
                and not handle._wall
                and handle not in self._handed_out
            ):
                # The work of `_update_queue` for a new handle. Nearly all are new, and inline it takes half the time.
                self._busy = True
                try:
                    handle._entry = schedule(handle, self._target_ms(handle))
                finally:
                    self._busy = False
            else:
                self._update_queue(handle)

    def add(self, handle: TimerHandle) -> None:
        """First empty the inbox, then put a new handle into its queue."""
        self.drain_inbox()
        self.arm(handle, handle._deadline_ms)

    def arm(self, handle: TimerHandle, deadline_ms: int) -> None:
        """Let the handle wait until `deadline_ms`."""
        self._handed_out.pop(handle, None)
        handle._deadline_ms = deadline_ms
        handle._state = _PENDING
        self._update_queue(handle)
        self._look_by(self.due_monotonic_ms(handle))

    def due_monotonic_ms(self, handle: TimerHandle) -> int:
        """The monotonic time, in ms, at which the handle is due or its wall-clock date must be checked again."""
        if not handle._wall:
            return coalesced(handle._deadline_ms, handle._slack_ms) if handle._slack_ms else handle._deadline_ms
        return self._wall_check_ms(self._target_ms(handle) - self._clock.wall_ms())

    def cancel(self, handle: TimerHandle) -> EntryState:
        """Do what `TimerHandle.cancel` does. The caller holds the lock."""
        if self.left_in_parent:
            return _CANCELLED
        if handle._state is _RUNNING:
            handle._every = None
            self._forget_key(handle)
        elif handle._state is _PENDING:
            handle._state = _CANCELLED
            handle._callback = None
            handle._args = ()
            self._handed_out.pop(handle, None)
            self._forget_key(handle)
            if handle._entry is not None:
                self._update_queue(handle)
        return handle._state

    def touch(self, handle: TimerHandle, delay_ms: float) -> bool:
        """Do what `TimerHandle.touch` does. Takes the lock."""
        deadline_ms = self._deadline_after(handle, delay_ms)
        with self.lock:
            if handle._state is not _PENDING or self.closed or self.left_in_parent:
                return False
            entry = handle._entry
            if entry is None or deadline_ms < handle._deadline_ms or self._busy:
                self.arm(handle, deadline_ms)
            else:
                handle._deadline_ms = deadline_ms
                entry.touch(self._target_ms(handle))
            return True

    def reschedule(self, handle: TimerHandle, delay_ms: float) -> bool:
        """Do what `TimerHandle.reschedule` does. Takes the lock."""
        deadline_ms = self._deadline_after(handle, delay_ms)
        with self.lock:
            if handle._state is _CANCELLED or self.closed or self.left_in_parent:
                return False
            if handle._key is not None and self.keys.setdefault(handle._key, handle) is not handle:
                return False  # another timer has the key now
            self.drain_inbox()
            self.arm(handle, deadline_ms)
            return True

    def due(self, limit: int) -> list[TimerHandle]:
        """Hand out the due handles, at most `limit`. The facade calls `start` for each."""
        now_ms, wall_ms = self._clock.monotonic_ms(), 0
        self._busy = True
        try:
            taken = self._queue.take(now_ms, limit)
            if self._wall_queue is not None and len(taken) < limit:
                wall_ms = self._clock.wall_ms()
                self._follow(self._wall_queue, wall_ms)
                taken += self._wall_queue.take(wall_ms, limit - len(taken))
        finally:
            self._busy = False
        handles = []
        for handle in taken:
            handle._entry = None
            if handle._state is not _PENDING:
                continue  # a finalizer cancelled it meanwhile
            if handle._deadline_ms > (wall_ms if handle._wall else now_ms):
                self._update_queue(handle)  # a finalizer postponed it
                continue
            self._handed_out[handle] = None
            handles.append(handle)
            late_ms = 0 if handle._wall else now_ms - handle._deadline_ms - handle._slack_ms - self._rounding_ms
            if late_ms > self.late_max_ms:
                self.late_max_ms = late_ms
            if late_ms >= LATE_MS:
                self.late += 1
        return handles

    def next_ms(self) -> int | None:
        """When `due` would next hand out a handle, by monotonic time; None when no timer waits.

        While a timer waits for a time of the wall clock, the answer is at most a second from now.
        """
        self._busy = True
        try:
            next_ms = self._queue.next_ms()
            if self._wall_queue is None:
                return next_ms
            wall_ms = self._clock.wall_ms()
            self._follow(self._wall_queue, wall_ms)
            next_wall_ms = self._wall_queue.next_ms()
        finally:
            self._busy = False
        if next_wall_ms is None:
            return next_ms
        check_ms = self._wall_check_ms(next_wall_ms - wall_ms)
        return check_ms if next_ms is None else min(next_ms, check_ms)

    def levels(self) -> tuple[int, ...]:
        """The number of waiting timers on each level of the wheels, lowest first. The caller holds the lock."""
        self.drain_inbox()
        queues = (self._queue,) if self._wall_queue is None else (self._queue, self._wall_queue)
        return tuple(map(sum, zip_longest(*(queue.levels for queue in queues), fillvalue=0)))

    def start(self, handle: TimerHandle) -> bool:
        """Set a handed-out handle to RUNNING. Returns False if it was cancelled, postponed or replaced meanwhile."""
        if handle not in self._handed_out:
            return False
        del self._handed_out[handle]
        handle._state = _RUNNING
        handle._runs += 1
        if handle._every is None:
            self._forget_key(handle)
        return True

    def take_back(self, handles: list[TimerHandle]) -> None:
        """Let the handed-out handles whose callback has not begun wait again."""
        for handle in handles:
            if handle in self._handed_out:
                self.arm(handle, handle._deadline_ms)

    def finish(self, handle: TimerHandle) -> None:
        """Note that a run has ended. A recurring timer then waits for its next run."""
        handle._runs -= 1
        if handle._state is not _RUNNING:
            return  # scheduled again meanwhile
        if handle._every is None or self.closed:
            if not handle._runs:
                handle._state = _FIRED
            return
        now_ms = self.now_ms(handle)
        if handle._every.fixed == "delay":
            now_ms = self._deadline_after(handle, 0)  # rounded up: the pause is never too short
        self.arm(handle, handle._every.next_ms(handle._deadline_ms, now_ms))

    def close(self) -> list[PendingTimer]:
        """Cancel and return all waiting timers, in order of their deadlines. The registry accepts no more timers.

        The caller holds the lock.
        """
        self.drain_inbox()
        self.closed = True
        handles = list(self._handed_out)
        for queue in (self._queue, self._wall_queue):
            if queue is not None:
                handles += queue.clear()
        pending = []
        for handle in handles:
            left_ms = handle.remaining_ms()
            assert handle._callback is not None  # noqa: S101  # a waiting handle has a callback
            pending.append(PendingTimer(left_ms, handle._callback, handle._args, handle._key, handle._every))
            handle._entry = None
            self.cancel(handle)
        pending.sort(key=lambda timer: timer.delay_ms)
        return pending

    def _update_queue(self, handle: TimerHandle) -> None:
        """Put a waiting handle into its queue, or remove a handle that does not wait."""
        if self._busy:
            self.inbox.append(handle)
            return
        self._busy = True
        try:
            entry = handle._entry
            if handle._state is _PENDING and handle not in self._handed_out:
                target_ms = self._target_ms(handle)
                if entry is None:
                    handle._entry = self._queue_of(handle).schedule(handle, target_ms)
                else:
                    entry.reschedule(target_ms)
            elif entry is not None:
                entry.cancel()
                handle._entry = None
        finally:
            self._busy = False

    def _target_ms(self, handle: TimerHandle) -> int:
        return coalesced(handle._deadline_ms, handle._slack_ms) if handle._slack_ms else handle._deadline_ms

    def _deadline_after(self, handle: TimerHandle, delay_ms: float) -> int:
        if handle._wall:  # the wall clock is read in whole ms, rounded down: count the current ms as over
            return deadline_after((self._clock.wall_ms() + 1) * NS_PER_MS, delay_ms)
        return deadline_after(self._clock.monotonic_ns(), delay_ms)

    def _wall_check_ms(self, left_ms: int) -> int:
        """When to read the wall clock again, in monotonic ms. The wall clock may step before `left_ms` have passed."""
        return self._clock.monotonic_ms() + min(max(left_ms, 0), WALL_CHECK_MS)

    def _queue_of(self, handle: TimerHandle) -> DeadlineQueue[TimerHandle]:
        if not handle._wall:
            return self._queue
        wall_ms = self._clock.wall_ms()
        if self._wall_queue is None:
            self._wall_queue = DeadlineQueue(wall_ms, **self._shape)
        self._follow(self._wall_queue, wall_ms)
        return self._wall_queue

    def _follow(self, queue: DeadlineQueue[TimerHandle], wall_ms: int) -> None:
        for entry in queue.follow(wall_ms):
            if entry.task is not None:
                entry.task._entry = entry

    def _forget_key(self, handle: TimerHandle) -> None:
        if handle._key is not None and self.keys.get(handle._key) is handle:
            del self.keys[handle._key]
