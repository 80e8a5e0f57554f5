"""The methods of a timer, written once for threads and asyncio. The subclasses decide who sleeps and who calls.

Threads: as the subclass says. `schedule` without a key takes no lock.
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
from wheel_sched.timers.deadlines import Jump, coalesced, slack_of, wall_deadline
from wheel_sched.timers.queue import deadline_after
from wheel_sched.timers.recurrence import CatchUp, Every
from wheel_sched.timers.registry import TimerHandle, TimerRegistry, TimerTask
from wheel_sched.wheel import EntryState

CLOSED = "the timer is closed; nothing was scheduled. Make a new one"

BACKLOG = 4096  # how many new timers may stand in the inbox before the sleeper is woken to take them in
AWAKE: Final = -1  # in place of the moment until which a timer sleeps


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """What a timer has done, and what it holds.

    Args:
        pending: how many timers wait: neither begun nor cancelled.
        fired: how many runs of callbacks have begun.
        failed: how many of them raised.
        wakeups: how often it woke up, by itself or because another thread woke it.
    """

    pending: int
    fired: int
    failed: int
    wakeups: int


class TimerFacade(ABC):
    """Base of `SystemTimer` and `AsyncTimer`."""

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
        self._sleeps_until: float = math.inf  # monotonic ms; whoever schedules something earlier wakes it
        self._registry = self._new_registry()
        self._fired = self._failed = self._wakeups = 0

    @property
    def clock(self) -> Clock:
        """Where time comes from."""
        return self._clock

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._registry.closed

    @property
    def statistics(self) -> TimerStatistics:
        """What the timer has done so far, and what waits."""
        return TimerStatistics(len(self), self._fired, self._failed, self._wakeups)

    def __len__(self) -> int:
        """How many timers wait, exactly: neither begun nor cancelled."""
        with self._lock:
            return len(self._registry)

    def __bool__(self) -> bool:
        return True  # an idle timer is a timer

    def next_ms(self) -> int | None:
        """When something is due next, in ms of the timer's monotonic clock; None when nothing waits.

        At most a second away while a timer of the wall clock waits.
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
            delay_ms: milliseconds, rounded up; 0 or less: at once, though never from within this call.
            callback: what to call.
            args: the callback's arguments.
            slack_ms: how much later would be as good, so that it may share a wake-up with others. Defaults to 0.
            key: take the place of the timer that waits under this key; the old timer does not begin after this call.
                Defaults to None (no key).

        Raises:
            Rejected: the delay, slack, key or callback is invalid, `max_pending` timers wait, or the timer is closed;
                nothing was scheduled.
        """
        handle = self._handle(deadline_after(self._now_ns(), delay_ms), callback, args)
        return self._add(handle, slack_ms, key)

    def add(self, task: TimerTask) -> TimerHandle:
        """Schedule a task as Kafka's `Timer.add` does. A task that waits already is moved.

        Raises:
            Rejected: as `schedule`.
        """
        return self.schedule(task.delay_ms, task.callback, *task.args, key=task)

    def schedule_if_absent(
        self, key: Hashable, delay_ms: float, callback: Callable[..., Any], *args: Any, slack_ms: int = 0
    ) -> TimerHandle:
        """As `schedule` with a key, unless a timer waits under that key. Answers the handle of the one that waits.

        Raises:
            Rejected: as `schedule`.
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
            when: with a time zone. A moment that has passed is due at once.
            on_jump: what happens to the timer when the wall clock is set. Defaults to `Jump.FOLLOW`.
            callback, args, slack_ms, key: as for `schedule`.

        Raises:
            Rejected: `when` has no time zone, or as `schedule`.
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
        """Call `callback(*args)` again and again until the timer is cancelled. Its runs never overlap.

        Args:
            interval_ms, fixed, catch_up: see `Every`.
            first_ms: how long until the first run. Defaults to `interval_ms`.
            callback, args, slack_ms, key: as for `schedule`.

        Raises:
            ConfigError: the interval, `fixed` or `catch_up` is invalid; nothing was scheduled.
            Rejected: as `schedule`.
        """
        every = Every(interval_ms, fixed, catch_up)
        first_ms = interval_ms if first_ms is None else first_ms
        handle = self._handle(deadline_after(self._clock.monotonic_ns(), first_ms), callback, args)
        handle._every = every
        return self._add(handle, slack_ms, key)

    def get(self, key: Hashable) -> TimerHandle | None:
        """The timer that waits under `key`; a recurring timer also while it runs."""
        with self._lock:
            return self._registry.keys.get(key)

    def cancel(self, key: Hashable) -> EntryState | None:
        """Cancel the timer that waits under `key`, as `TimerHandle.cancel` does; None when there is no such timer."""
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
        """Drain the inbox soon, and look for due timers at `look_ms` at the latest. Under the lock."""

    def _due_at(self, look_ms: int) -> None:
        """Something is due at `look_ms`, perhaps before the timer would look. Under the lock."""
        if look_ms < self._sleeps_until:
            self._look_by(look_ms)

    def _add(self, handle: TimerHandle, slack_ms: int, key: Hashable | None) -> TimerHandle:
        """Take a new handle in. Nearly all timers come this way, so it spells out what `TimerRegistry.add` would do."""
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
            # The handle knows its entry before the entry waits: from then on it may be handed out at any moment.
            handle._entry = entry = new_entry(handle)
            entry.reschedule(look_ms)
        else:
            registry.inbox.append(handle)
        # The sleeper writes `_sleeps_until` before it looks for the last time, so either it sees this timer,
        # or this thread sees that it sleeps.
        if look_ms < self._sleeps_until:
            with self._lock:
                self._due_at(look_ms)
        elif len(registry.inbox) > BACKLOG:
            with self._lock:
                self._look_by(look_ms)
        if registry.closed:
            with self._lock:
                # Whether `close` found it in the inbox shows in its state.
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
            raise Rejected("expected key to be anything but None; nothing was scheduled")
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
                " Cancel some, wait, or allow more"
            )
