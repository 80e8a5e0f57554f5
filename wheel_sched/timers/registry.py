"""The timer registry: everything that timers decide, without a thread and without an event loop.

The registry holds the handles, their states and keys, and two deadline queues: one by monotonic time, and one by the
wall clock while a timer waits for that. Its facade (a reaper thread or an event loop) asks what is `due`, calls
`start`, the callback and `finish` for each handle, and sleeps until `next_ms`.

States: PENDING -> RUNNING -> FIRED, or PENDING -> CANCELLED for good. A timer is PENDING until its callback begins,
also while it stands in the queue of an executor. A recurring timer goes back from RUNNING to PENDING, and so does a
timer that is scheduled again.

Invariant: a PENDING handle is in one of three places: the inbox, a deadline queue, or `_handed_out` (due, and given to
the facade). `start` and `cancel` run under the facade's lock, so each firing has one winner: the callback or `cancel`.

Threads: all methods run under the facade's lock. Two ways to schedule need no lock. Any thread may append to `inbox`.
Where the wheel's core makes each call one step (`DeadlineQueue.any_thread`), any thread may also call `new_entry` and
then `reschedule` on that entry; this skips the inbox. Finalizers may run anywhere, so one may call `cancel` while the
same thread works on a queue. The registry then notes the change in the handle and carries it into the queue later, by
way of the inbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final

from wheel_sched.clock import Clock
from wheel_sched.timers.deadlines import coalesced
from wheel_sched.timers.queue import NS_PER_MS, DeadlineQueue, deadline_after
from wheel_sched.timers.recurrence import Every
from wheel_sched.wheel import EntryState, TimerTaskEntry

_PENDING: Final = EntryState.PENDING
_RUNNING: Final = EntryState.RUNNING
_FIRED: Final = EntryState.FIRED
_CANCELLED: Final = EntryState.CANCELLED

WALL_CHECK_MS = 1000  # how long a step of the wall clock may go unnoticed while a timer waits for that clock


@dataclass(eq=False, slots=True)
class TimerTask:
    """Kafka's `TimerTask`: an argument of `add`. One task waits once; adding it again moves it.

    Args:
        delay_ms: as `schedule` takes it; may be changed before the task is added again.
        callback: what to call.
        args: its arguments. Defaults to none.
    """

    delay_ms: float
    callback: Callable[..., Any]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """A timer that had not begun when `close` was called; enough to schedule it elsewhere.

    Args:
        delay_ms: how much of its delay was left, by its own clock; 0 when it was due.
        callback: what it would have called.
        args: the callback's arguments.
        key: its key, None when it had none.
        every: how it recurs, None for a timer that runs once.
    """

    delay_ms: int
    callback: Callable[..., Any]
    args: tuple[Any, ...]
    key: Hashable | None
    every: Every | None


class TimerHandle:
    """One scheduled callback. Only a timer's methods make handles.

    Threads: as the timer it belongs to. On threads any thread may call anything; on asyncio only the loop's thread.
    """

    __slots__ = (
        "__weakref__",
        "_args",
        "_callback",
        "_context",
        "_deadline_ms",
        "_entry",
        "_every",
        "_key",
        "_registry",
        "_runs",
        "_slack_ms",
        "_state",
        "_wall",
    )

    # No __init__: passing ten arguments to one costs more than making the object.
    _args: tuple[Any, ...]
    _callback: Callable[..., Any] | None  # None once cancelled
    _context: Context
    _deadline_ms: int
    _entry: TimerTaskEntry[TimerHandle] | None  # its place in a deadline queue; None while it is in none
    _every: Every | None
    _key: Hashable | None
    _registry: TimerRegistry
    _runs: int  # how many runs of the callback have begun and not ended
    _slack_ms: int
    _state: EntryState
    _wall: bool  # whether the deadline is one of the wall clock

    @property
    def state(self) -> EntryState:
        """Where the timer stands."""
        return EntryState.CANCELLED if self._registry.left_in_parent else self._state

    @property
    def deadline_ms(self) -> int:
        """When it is (or was) due, in ms of the clock it waits for, monotonic or wall; without slack."""
        return self._deadline_ms

    @property
    def key(self) -> Hashable | None:
        """The key it was scheduled under, None when it has none."""
        return self._key

    def remaining_ms(self) -> int:
        """How long until it is due by its clock; 0 when it is due or past."""
        return max(self._deadline_ms - self._registry.now_ms(self), 0)

    def cancel(self) -> EntryState:
        """Keep the callback from running (again), and let go of it and its arguments. Answers the state afterwards.

        CANCELLED: it will not run. RUNNING: it has begun and is not interrupted; a recurring timer ends with this
        run. FIRED: it was over already.
        """
        registry = self._registry
        with registry.lock:
            return registry.cancel(self)

    def touch(self, delay_ms: float) -> bool:
        """Be due `delay_ms` from now instead, if it still waits. A later deadline is cheap: made for heartbeats.

        A touched timer may run before or after the others of its new tick, whoever came first. Answers False, and
        changes nothing, when the timer does not wait (any more) or is closed.

        Raises:
            Rejected: `delay_ms` is not a finite number; nothing was changed.
        """
        return self._registry.touch(self, delay_ms)

    def reschedule(self, delay_ms: float) -> bool:
        """Be due `delay_ms` from now instead, as if scheduled now; also when it runs or has fired.

        Answers False, and changes nothing, when it was cancelled (its callback is gone), when another timer waits
        under its key, or when the timer is closed.

        Raises:
            Rejected: `delay_ms` is not a finite number; nothing was changed.
        """
        return self._registry.reschedule(self, delay_ms)

    def __repr__(self) -> str:
        key = "" if self._key is None else f" key={self._key!r}"
        name = getattr(self._callback, "__qualname__", repr(self._callback))
        return f"<TimerHandle {self.state.value} deadline_ms={self._deadline_ms}{key} callback={name}>"


class TimerRegistry:
    """Handles and deadline queues of one timer.

    Args:
        clock: where time comes from.
        lock: the facade's lock.
        look_by: called under the lock with the monotonic ms at which something is due, when that changes.
        tick_ms, wheel_size: shape of the deadline queues.
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
        self._clock = clock
        self._look_by = look_by
        self._shape = {"tick_ms": tick_ms, "wheel_size": wheel_size}
        self._queue: DeadlineQueue[TimerHandle] = DeadlineQueue(clock.monotonic_ms(), **self._shape)
        self.new_entry = self._queue.new_entry
        self._wall_queue: DeadlineQueue[TimerHandle] | None = None
        self._handed_out: dict[TimerHandle, None] = {}
        self._busy = False  # a queue is at work: whoever calls now is a finalizer on the same thread

    def __len__(self) -> int:
        """How many timers wait, exactly: neither begun nor cancelled. Under the lock."""
        self.drain_inbox()
        return len(self._queue) + (0 if self._wall_queue is None else len(self._wall_queue)) + len(self._handed_out)

    def now_ms(self, handle: TimerHandle) -> int:
        """Now by the clock the handle waits for."""
        return self._clock.wall_ms() if handle._wall else self._clock.monotonic_ms()

    def drain_inbox(self) -> None:
        """Bring the queues up to date with the handles in the inbox."""
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
                # What `_update_queue` does for a new handle. Nearly all are new; in line it takes half the time.
                self._busy = True
                try:
                    handle._entry = schedule(handle, self._target_ms(handle))
                finally:
                    self._busy = False
            else:
                self._update_queue(handle)

    def add(self, handle: TimerHandle) -> None:
        """Take a new handle in, after all that is in the inbox."""
        self.drain_inbox()
        self.arm(handle, handle._deadline_ms)

    def arm(self, handle: TimerHandle, deadline_ms: int) -> None:
        """Have the handle wait for `deadline_ms`."""
        self._handed_out.pop(handle, None)
        handle._deadline_ms = deadline_ms
        handle._state = _PENDING
        self._update_queue(handle)
        self._look_by(self.due_monotonic_ms(handle))

    def due_monotonic_ms(self, handle: TimerHandle) -> int:
        """When to look at the handle, by monotonic time."""
        if not handle._wall:
            return coalesced(handle._deadline_ms, handle._slack_ms) if handle._slack_ms else handle._deadline_ms
        return self._wall_check_ms(self._target_ms(handle) - self._clock.wall_ms())

    def cancel(self, handle: TimerHandle) -> EntryState:
        """See `TimerHandle.cancel`. Under the lock."""
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
        """See `TimerHandle.touch`. Takes the lock."""
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
        """See `TimerHandle.reschedule`. Takes the lock."""
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
        """Hand out the handles that are due, at most `limit`. The facade calls `start` for each."""
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
                self._update_queue(handle)  # a finalizer put it off
                continue
            self._handed_out[handle] = None
            handles.append(handle)
        return handles

    def next_ms(self) -> int | None:
        """When `due` would next hand something out, by monotonic time; None when nothing waits.

        At most a second away while a timer of the wall clock waits.
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

    def start(self, handle: TimerHandle) -> bool:
        """Whether to call the callback of a handle that was handed out. If so, it runs from here on."""
        if handle not in self._handed_out:
            return False  # cancelled, put off or replaced since
        del self._handed_out[handle]
        handle._state = _RUNNING
        handle._runs += 1
        if handle._every is None:
            self._forget_key(handle)
        return True

    def take_back(self, handles: list[TimerHandle]) -> None:
        """Let those of `handles` that have not begun wait again."""
        for handle in handles:
            if handle in self._handed_out:
                self.arm(handle, handle._deadline_ms)

    def finish(self, handle: TimerHandle) -> None:
        """A run has ended; a recurring timer waits for its next."""
        handle._runs -= 1
        if handle._state is not _RUNNING:
            return  # scheduled again meanwhile
        if handle._every is None or self.closed:
            if not handle._runs:
                handle._state = _FIRED
            return
        now_ms = self.now_ms(handle)
        if handle._every.fixed == "delay":
            now_ms = self._deadline_after(handle, 0)  # rounded up: the pause is never shorter than asked for
        self.arm(handle, handle._every.next_ms(handle._deadline_ms, now_ms))

    def close(self) -> list[PendingTimer]:
        """Cancel all that has not begun, and accept nothing more. Answers what waited, by deadline. Under the lock."""
        self.drain_inbox()
        self.closed = True
        handles = list(self._handed_out)
        for queue in (self._queue, self._wall_queue):
            if queue is not None:
                handles += queue.clear()
        pending = []
        for handle in handles:
            left_ms = handle.remaining_ms()
            assert handle._callback is not None  # noqa: S101  # it waits, so it has one
            pending.append(PendingTimer(left_ms, handle._callback, handle._args, handle._key, handle._every))
            handle._entry = None
            self.cancel(handle)
        pending.sort(key=lambda timer: timer.delay_ms)
        return pending

    def _update_queue(self, handle: TimerHandle) -> None:
        """Make a queue hold the handle exactly if the handle waits."""
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
        if handle._wall:  # the wall clock is read in ms, rounded down: what is left of the ms counts as over
            return deadline_after((self._clock.wall_ms() + 1) * NS_PER_MS, delay_ms)
        return deadline_after(self._clock.monotonic_ns(), delay_ms)

    def _wall_check_ms(self, left_ms: int) -> int:
        """When to look at the wall clock again, by monotonic time: what it shows may change before `left_ms` pass."""
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
