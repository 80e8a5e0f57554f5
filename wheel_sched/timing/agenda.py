"""The agenda: everything a timer decides, without a thread and without a loop.

It holds the wheels (one by monotonic time, one by the wall clock when somebody waits for that), the keys and the
states of the handles. Its face (a reaper thread, an event loop) asks what is due, calls `start`, the callback and
`finish`, and sleeps until `next_ms`.

Invariant: a handle that has not begun is in one of three places, namely the inbox, a wheel, or `_handed` (due, given to
the face). `start` and `cancel` are made under the face's lock, so each firing has one winner.

Threads: everything happens under the face's lock, apart from the two ways by which any thread schedules without one:
`inbox.append`, and with a core of which a call is one step (`TimingWheel.any_thread`) `new_entry` and the `reschedule`
of what it answers, which spare the way through the inbox. Finalizers may run anywhere, so `cancel` may come in the
midst of the wheel's work on the same thread; what it changes is then noted in the handle and carried into the wheel
through the inbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, Final

from wheel_sched.clock import Clock
from wheel_sched.timing.deadlines import NS_PER_MS, coalesced, deadline_after
from wheel_sched.timing.handle import TimerHandle
from wheel_sched.timing.pending import PendingTimer
from wheel_sched.wheel import EntryState, TimingWheel

_PENDING: Final = EntryState.PENDING
_RUNNING: Final = EntryState.RUNNING
_FIRED: Final = EntryState.FIRED
_CANCELLED: Final = EntryState.CANCELLED

WALL_CHECK_MS = 1000  # how long a step of the wall clock may go unnoticed while somebody waits for it


class Agenda:
    """Handles and wheels of one timer.

    Args:
        clock: where time comes from.
        lock: what the face guards it with.
        rearm: called under the lock when something is due at that monotonic ms, perhaps before the face would look.
        tick_ms, wheel_size: shape of the wheels.
    """

    def __init__(
        self,
        clock: Clock,
        lock: AbstractContextManager[Any],
        rearm: Callable[[int], None],
        *,
        tick_ms: int,
        wheel_size: int,
    ) -> None:
        self.inbox: deque[TimerHandle] = deque()
        self.keys: dict[Hashable, TimerHandle] = {}
        self.lock = lock
        self.closed = False
        self.lost = False  # made by the parent of this process: its timers run there
        self._clock = clock
        self._rearm = rearm
        self._shape = {"tick_ms": tick_ms, "wheel_size": wheel_size}
        self._wheel: TimingWheel[TimerHandle] = TimingWheel(clock.monotonic_ms(), **self._shape)
        self.new_entry = self._wheel.entry if self._wheel.any_thread else None
        self._wall: TimingWheel[TimerHandle] | None = None
        self._handed: dict[TimerHandle, None] = {}
        self._busy = False  # the wheel is at work: whoever comes now is a finalizer on the same thread

    def __len__(self) -> int:
        """How many wait, exactly: neither begun nor cancelled. Under the lock."""
        self.settle()
        return len(self._wheel) + (0 if self._wall is None else len(self._wall)) + len(self._handed)

    def now_ms(self, handle: TimerHandle) -> int:
        """Now by the clock the handle waits for."""
        return self._clock.wall_ms() if handle._wall else self._clock.monotonic_ms()

    def settle(self) -> None:
        """Make the wheels agree with what has come through the inbox."""
        if self._busy:
            return
        inbox, schedule = self.inbox, self._wheel.schedule
        for _ in range(len(inbox)):
            handle = inbox.popleft()
            if handle._entry is None and handle._state is _PENDING and not handle._wall and handle not in self._handed:
                # What `_agree` would do for a new one, which nearly all are: in line it takes half the time.
                self._busy = True
                try:
                    handle._entry = schedule(handle, self._target_ms(handle))
                finally:
                    self._busy = False
            else:
                self._agree(handle)

    def add(self, handle: TimerHandle) -> None:
        """Take a new handle in, after all that is in the inbox."""
        self.settle()
        self.arm(handle, handle._deadline_ms)

    def arm(self, handle: TimerHandle, deadline_ms: int) -> None:
        """Have the handle wait for `deadline_ms`."""
        self._handed.pop(handle, None)
        handle._deadline_ms = deadline_ms
        handle._state = _PENDING
        self._agree(handle)
        self._rearm(self.due_monotonic_ms(handle))

    def due_monotonic_ms(self, handle: TimerHandle) -> int:
        """When to look after the handle, by monotonic time."""
        if not handle._wall:
            return coalesced(handle._deadline_ms, handle._slack_ms) if handle._slack_ms else handle._deadline_ms
        return self._clock.monotonic_ms() + min(max(self._target_ms(handle) - self._clock.wall_ms(), 0), WALL_CHECK_MS)

    def cancel(self, handle: TimerHandle) -> EntryState:
        """See `TimerHandle.cancel`. Under the lock."""
        if self.lost:
            return _CANCELLED
        if handle._state is _RUNNING:
            handle._every = None
            self._forget_key(handle)
        elif handle._state is _PENDING:
            handle._state = _CANCELLED
            handle._callback = None
            handle._args = ()
            self._handed.pop(handle, None)
            self._forget_key(handle)
            if handle._entry is not None:
                self._agree(handle)
        return handle._state

    def touch(self, handle: TimerHandle, delay_ms: float) -> bool:
        """See `TimerHandle.touch`. Takes the lock."""
        deadline_ms = self._deadline_after(handle, delay_ms)
        with self.lock:
            if handle._state is not _PENDING or self.closed or self.lost:
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
            if handle._state is _CANCELLED or self.closed or self.lost:
                return False
            if handle._key is not None and self.keys.setdefault(handle._key, handle) is not handle:
                return False  # another has taken its place
            self.settle()
            self.arm(handle, deadline_ms)
            return True

    def due(self, limit: int) -> list[TimerHandle]:
        """Hand out what is due, `limit` at most; less means that was all. Each wants `start`."""
        now_ms, wall_ms = self._clock.monotonic_ms(), 0
        self._busy = True
        try:
            entries = self._wheel.advance(now_ms, limit)
            if self._wall is not None and len(entries) < limit:
                wall_ms = self._clock.wall_ms()
                self._follow(wall_ms)
                entries += self._wall.advance(wall_ms, limit - len(entries))
        finally:
            self._busy = False
        handles = []
        for entry in entries:
            handle = entry.task
            if handle is None:
                continue
            handle._entry = None
            if handle._state is not _PENDING:
                continue  # cancelled by a finalizer meanwhile
            if handle._deadline_ms > (wall_ms if handle._wall else now_ms):
                self._agree(handle)  # put off by one
                continue
            self._handed[handle] = None
            handles.append(handle)
        return handles

    def next_ms(self) -> int | None:
        """When `due` would next hand something out, by monotonic time; None when nothing waits.

        While a wall timer waits this is at most a second away.
        """
        self._busy = True
        try:
            next_ms = self._wheel.next_expiry()
            if self._wall is None:
                return next_ms
            wall_ms = self._clock.wall_ms()
            self._follow(wall_ms)
            next_wall_ms = self._wall.next_expiry()
        finally:
            self._busy = False
        if next_wall_ms is None:
            return next_ms
        look_ms = self._clock.monotonic_ms() + min(max(next_wall_ms - wall_ms, 0), WALL_CHECK_MS)
        return look_ms if next_ms is None else min(next_ms, look_ms)

    def start(self, handle: TimerHandle) -> bool:
        """Whether the callback of a handle that was handed out is to be called now; if so, it runs from here on."""
        if handle not in self._handed:
            return False  # cancelled, put off or replaced since
        del self._handed[handle]
        handle._state = _RUNNING
        handle._runs += 1
        if handle._every is None:
            self._forget_key(handle)
        return True

    def take_back(self, handles: list[TimerHandle]) -> None:
        """Those of them that were handed out and have not begun wait again."""
        for handle in handles:
            if handle in self._handed:
                self.arm(handle, handle._deadline_ms)

    def finish(self, handle: TimerHandle) -> None:
        """A run has ended; a recurring timer waits for its next."""
        handle._runs -= 1
        if handle._state is not _RUNNING:
            return  # armed again meanwhile
        if handle._every is None or self.closed:
            if not handle._runs:
                handle._state = _FIRED
            return
        now_ms = self.now_ms(handle)
        if handle._every.fixed == "delay":
            now_ms = self._deadline_after(handle, 0)  # rounded up: the pause is never shorter than asked for
        self.arm(handle, handle._every.next_ms(handle._deadline_ms, now_ms))

    def close(self) -> list[PendingTimer]:
        """Cancel all that has not begun, take nothing more, and answer it by deadline. Under the lock."""
        self.settle()
        self.closed = True
        handles = list(self._handed)
        for wheel in (self._wheel, self._wall):
            if wheel is not None:
                handles += [handle for _, handle in wheel.clear()]
        pending = []
        for handle in handles:
            left_ms = handle.remaining_ms()
            assert handle._callback is not None  # noqa: S101  # it waits, so it has one
            pending.append(PendingTimer(left_ms, handle._callback, handle._args, handle._key, handle._every))
            handle._entry = None
            self.cancel(handle)
        pending.sort(key=lambda timer: timer.delay_ms)
        return pending

    def _agree(self, handle: TimerHandle) -> None:
        """Make the wheel agree with the handle: it waits there exactly if it is pending."""
        if self._busy:
            self.inbox.append(handle)
            return
        self._busy = True
        try:
            entry = handle._entry
            if handle._state is _PENDING and handle not in self._handed:
                target_ms = self._target_ms(handle)
                if entry is None:
                    handle._entry = self._wheel_of(handle).schedule(handle, target_ms)
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

    def _wheel_of(self, handle: TimerHandle) -> TimingWheel[TimerHandle]:
        if not handle._wall:
            return self._wheel
        wall_ms = self._clock.wall_ms()
        if self._wall is None:
            self._wall = TimingWheel(max(wall_ms, 0), **self._shape)
        self._follow(wall_ms)
        return self._wall

    def _follow(self, wall_ms: int) -> None:
        """Take the wall wheel back when its clock went back: what it holds must not be due before its time again."""
        if self._wall is None or wall_ms >= self._wall.now_ms:
            return
        held = self._wall.snapshot()
        self._wall = TimingWheel(max(wall_ms, 0), **self._shape)
        for entry in self._wall.restore(held):
            if entry.task is not None:
                entry.task._entry = entry

    def _forget_key(self, handle: TimerHandle) -> None:
        if handle._key is not None and self.keys.get(handle._key) is handle:
            del self.keys[handle._key]
