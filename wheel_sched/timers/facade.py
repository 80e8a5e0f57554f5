"""The public methods of a timer, for threads and asyncio. The subclasses wait for deadlines and call the callbacks.

Threads: see the subclass. Without a key and without `max_pending`, `schedule` takes the lock only to wake the timer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from wheel_sched.clock import Clock
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.timers.deadlines import CatchUp, Every, Jump, coalesced, slack_of, wall_deadline
from wheel_sched.timers.handle import TimerHandle, TimerTask
from wheel_sched.timers.queue import deadline_after
from wheel_sched.timers.registry import TimerRegistry
from wheel_sched.wheel import EntryState

CLOSED = "the timer is closed; nothing was scheduled. Make a new one"

BACKLOG = 4096  # with more new timers in the inbox, the sleeping thread is woken to empty it
AWAKE: Final = -1  # the value of `_sleeps_until` while the timer does not sleep


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """The counters of a timer.

    Args:
        pending: timers that wait for a run.
        fired: runs of callbacks that have begun.
        failed: runs that have raised, and timers that your executor has refused. A cancelled coroutine is no failure.
        wakeups: how often the reaper or the event loop has looked for due timers.
        late: how often the reaper or the event loop has found a timer 100 ms or more after its time. Slack and the
            rounding to ticks are no lateness, and timers that follow the wall clock are not counted. The callback may
            run later still, after the callbacks of other due timers.
        late_max_ms: the greatest lateness, even if it is below 100 ms.
    """

    pending: int
    fired: int
    failed: int
    wakeups: int
    late: int
    late_max_ms: int


class TimerFacade(ABC):
    """The base class of `SystemTimer` and `AsyncTimer`."""

    def __init__(
        self,
        clock: Clock,
        lock: AbstractContextManager[Any],
        *,
        tick_ms: int,
        wheel_size: int,
        max_pending: int | None,
        on_error: Callable[[TimerHandle, BaseException], object] | None,
    ) -> None:
        problems = []
        if not isinstance(clock, Clock):
            problems.append(f"expected clock to be a wheel_sched.clock.Clock, got: {clock!r}")
        if max_pending is not None and (type(max_pending) is not int or max_pending < 1):
            problems.append(f"expected max_pending to be None or an int of at least 1, got: {max_pending!r}")
        if on_error is not None and not callable(on_error):
            problems.append(f"expected on_error to be None or callable, got: {on_error!r}")
        if problems:
            raise ConfigError(problems)
        self._clock = clock
        self._now_ns = clock.monotonic_ns
        self._lock = lock
        self._max_pending = max_pending
        self._on_error = on_error
        self._tick_ms, self._wheel_size = tick_ms, wheel_size
        self._sleeps_until: float = math.inf  # monotonic ms; `schedule` wakes the timer for an earlier deadline
        self._registry = self._new_registry()
        self._fired = self._failed = self._wakeups = 0

    @property
    def clock(self) -> Clock:
        """The clock that the timer reads."""
        return self._clock

    @property
    def closed(self) -> bool:
        """Whether the timer is closed, by `close` or because the interpreter ends."""
        return self._registry.closed

    @property
    def statistics(self) -> TimerStatistics:
        """A copy of the counters, as they are now."""
        registry = self._registry
        return TimerStatistics(len(self), self._fired, self._failed, self._wakeups, registry.late, registry.late_max_ms)

    @property
    def tick_ms(self) -> int:
        """The length of a tick."""
        return self._tick_ms

    def levels(self) -> tuple[int, ...]:
        """The number of waiting timers on each level of the timing wheels, lowest first. A call may cost O(timers)."""
        with self._lock:
            return self._registry.levels()

    def __len__(self) -> int:
        """The exact number of timers that wait for a run."""
        with self._lock:
            return len(self._registry)

    def __bool__(self) -> bool:
        return True  # also when no timer waits and `len` is 0

    def next_ms(self) -> int | None:
        """When this timer must next look for due timers, in ms of the monotonic clock; None: none waits to be due.

        While a timer waits for a time of the wall clock, the answer is at most a second from now.
        """
        with self._lock:
            self._registry.drain_inbox()
            return self._registry.next_ms()

    def schedule(
        self,
        delay_ms: float,
        callback: Callable[..., Any],
        *args: Any,
        slack_ms: int = 0,
        key: Hashable | None = None,
    ) -> TimerHandle:
        """Call `callback(*args)` once `delay_ms` have passed, in a copy of the caller's context variables.

        Args:
            delay_ms: milliseconds, rounded up. 0 or less: the callback runs at once, but never inside this call.
            callback: the function to call.
            args: the callback's arguments.
            slack_ms: how much later the callback may run, so that timers share a wake-up. Defaults to 0.
            key: the new timer replaces the timer that waits under this key; the old timer begins no run after this
                call. Defaults to None (no key).

        Raises:
            Rejected: the delay, slack, key or callback is invalid, `max_pending` timers wait, or the timer is closed;
                nothing was scheduled.
        """
        handle = self._handle(deadline_after(self._now_ns(), delay_ms), callback, args)
        return self._add(handle, slack_ms, key)

    def add(self, task: TimerTask) -> TimerHandle:
        """Schedule a task as Kafka's `Timer.add` does. If the task waits already, the new timer replaces the old one.

        Raises:
            Rejected: see `schedule`.
        """
        return self.schedule(task.delay_ms, task.callback, *task.args, key=task)

    def schedule_if_absent(
        self, key: Hashable, delay_ms: float, callback: Callable[..., Any], *args: Any, slack_ms: int = 0
    ) -> TimerHandle:
        """Schedule a timer under a key, unless `get` finds one there. Returns the handle of the timer under the key.

        Raises:
            Rejected: see `schedule`.
        """
        deadline_ms = deadline_after(self._clock.monotonic_ns(), delay_ms)
        handle = self._handle(deadline_ms, callback, args)
        handle._slack_ms = slack_of(slack_ms)
        return self._add_keyed(handle, key, replace=False)

    def schedule_at(
        self,
        when: datetime,
        callback: Callable[..., Any],
        *args: Any,
        on_jump: Jump = Jump.FOLLOW,
        slack_ms: int = 0,
        key: Hashable | None = None,
    ) -> TimerHandle:
        """Call `callback(*args)` at a date and time.

        Args:
            when: a date and time with a time zone. If it is in the past, the callback runs at once.
            on_jump: what happens to the timer when the wall clock is set. Defaults to `Jump.FOLLOW`.
            callback, args, slack_ms, key: see `schedule`.

        Raises:
            Rejected: `when` is no datetime with a time zone, or `on_jump` is no `Jump`; for other reasons see
                `schedule`.
        """
        deadline_ms = wall_deadline(when)
        if not isinstance(on_jump, Jump):
            raise Rejected(f"expected on_jump to be a member of Jump, got: {on_jump!r}; nothing was scheduled")
        if on_jump is Jump.ELAPSE:
            left_ms = deadline_ms - self._clock.wall_ms()
            handle = self._handle(deadline_after(self._clock.monotonic_ns(), left_ms), callback, args)
        else:
            handle = self._handle(deadline_ms, callback, args)
            handle._wall = True
        return self._add(handle, slack_ms, key)

    def every(
        self,
        interval_ms: int,
        callback: Callable[..., Any],
        *args: Any,
        fixed: Literal["rate", "delay"] = "rate",
        catch_up: CatchUp = CatchUp.ONCE,
        first_ms: float | None = None,
        slack_ms: int = 0,
        key: Hashable | None = None,
    ) -> TimerHandle:
        """Call `callback(*args)` again and again until the timer is cancelled. Its runs do not overlap; see `Every`.

        Args:
            interval_ms, fixed, catch_up: see `Every`.
            first_ms: time until the first run. Defaults to `interval_ms`.
            callback, args, slack_ms, key: see `schedule`.

        Raises:
            ConfigError: the interval, `fixed` or `catch_up` is invalid; nothing was scheduled.
            Rejected: see `schedule`.
        """
        every = Every(interval_ms, fixed, catch_up)
        first_ms = interval_ms if first_ms is None else first_ms
        handle = self._handle(deadline_after(self._clock.monotonic_ns(), first_ms), callback, args)
        handle._every = every
        return self._add(handle, slack_ms, key)

    def get(self, key: Hashable) -> TimerHandle | None:
        """The timer that waits under `key`, or None. A recurring timer keeps its key while it runs."""
        with self._lock:
            return self._registry.keys.get(key)

    def cancel(self, key: Hashable) -> EntryState | None:
        """Cancel the timer that `get` finds under `key`. Returns its new state; None when there is none."""
        with self._lock:
            handle = self._registry.keys.get(key)
            return None if handle is None else self._registry.cancel(handle)

    def __repr__(self) -> str:
        next_ms = None if self.closed else self.next_ms()
        due = "none" if next_ms is None else f"{next_ms - self._clock.monotonic_ms():+}ms"
        state = "closed" if self.closed else f"pending={len(self)} next={due}"
        return f"<{type(self).__name__} {state} fired={self._fired} tick={self._tick_ms}ms>"

    @abstractmethod
    def _look_by(self, look_ms: int) -> None:
        """Put the timers of the registry's inbox into their queue soon, and look for due timers by `look_ms`.

        The caller holds the lock.
        """

    def _due_at(self, look_ms: int) -> None:
        """Make sure that this timer looks for due timers at `look_ms` or earlier. The caller holds the lock."""
        if look_ms < self._sleeps_until:
            self._look_by(look_ms)

    def _add(self, handle: TimerHandle, slack_ms: int, key: Hashable | None) -> TimerHandle:
        """Add a new handle. The work of `TimerRegistry.add` is inline, because nearly all timers are added here."""
        look_ms = handle._deadline_ms
        if slack_ms != 0:
            handle._slack_ms = slack_of(slack_ms)
            look_ms = coalesced(look_ms, slack_ms)
        if key is not None:
            return self._add_keyed(handle, key)
        registry = self._registry
        if self._max_pending is not None or handle._wall or registry.closed:
            return self._add_locked(handle)
        new_entry = registry.new_entry
        if new_entry is not None:
            # The handle must know its entry before the entry waits: afterwards it may be handed out at any moment.
            handle._entry = entry = new_entry(handle)
            entry.reschedule(look_ms)
        else:
            registry.inbox.append(handle)
        # The reaper writes `_sleeps_until` before its last look at the queue. So either the reaper sees this timer, or
        # this thread sees that the reaper sleeps.
        if look_ms < self._sleeps_until:
            with self._lock:
                self._due_at(look_ms)
        elif len(registry.inbox) > BACKLOG:
            with self._lock:
                self._look_by(look_ms)
        if registry.closed:
            with self._lock:
                # If `close` has found the handle, it has cancelled it.
                if handle._state is EntryState.PENDING:
                    registry.cancel(handle)
                    raise Rejected(CLOSED)
        return handle

    def _new_registry(self) -> TimerRegistry:
        return TimerRegistry(self._clock, self._lock, self._due_at, tick_ms=self._tick_ms, wheel_size=self._wheel_size)

    def _handle(self, deadline_ms: int, callback: Callable[..., Any], args: tuple[Any, ...]) -> TimerHandle:
        if not callable(callback):
            raise Rejected(f"expected callback to be callable, got: {callback!r}; nothing was scheduled")
        handle = TimerHandle()
        handle._registry = self._registry
        handle._callback = callback
        handle._args = args
        handle._context = copy_context()
        handle._deadline_ms = deadline_ms
        handle._entry = handle._every = handle._key = None
        handle._runs = handle._slack_ms = 0
        handle._state = EntryState.PENDING
        handle._wall = False
        return handle

    def _add_locked(self, handle: TimerHandle) -> TimerHandle:
        with self._lock:
            self._check_room()
            self._registry.add(handle)
        return handle

    def _add_keyed(self, handle: TimerHandle, key: Hashable, *, replace: bool = True) -> TimerHandle:
        try:
            hash(key)
        except TypeError:
            raise Rejected(f"expected key to be hashable, got: {key!r}; nothing was scheduled") from None
        if key is None:
            raise Rejected("expected key to be other than None; nothing was scheduled")
        with self._lock:
            registry = self._registry
            standing = registry.keys.get(key)
            if standing is None or registry.closed:
                self._check_room()
            elif not replace:
                return standing
            else:
                registry.cancel(standing)
            handle._key = key
            registry.keys[key] = handle
            registry.add(handle)
        return handle

    def _check_room(self) -> None:
        if self._registry.closed:
            raise Rejected(CLOSED)
        if self._max_pending is not None and len(self._registry) >= self._max_pending:
            raise Rejected(
                f"expected fewer than max_pending={self._max_pending} timers to wait; nothing was scheduled."
                " Cancel timers, wait, or raise max_pending"
            )
