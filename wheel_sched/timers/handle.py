"""The handle of one timer: its state, and what its user may do with it.

States: PENDING -> RUNNING -> FIRED, or PENDING -> CANCELLED for good. A timer is PENDING until its callback begins,
also while it waits for a thread of an executor. A recurring timer returns from RUNNING to PENDING. A timer that is
scheduled again returns from RUNNING or FIRED. For speed, handle, registry and facade use each other's private fields.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol

from wheel_sched.timers.deadlines import Every
from wheel_sched.wheel import EntryState, TimerTaskEntry


@dataclass(eq=False, slots=True)
class TimerTask:
    """Kafka's `TimerTask`: an argument of `add`. A task waits only once: a second `add` moves it.

    Args:
        delay_ms: see `schedule`. It may be changed before the task is added again.
        callback: the function to call.
        args: its arguments. Defaults to none.
    """

    delay_ms: float
    callback: Callable[..., Any]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """A timer that `close` has cancelled, with what is needed to schedule it elsewhere, but no slack and no context.

    Args:
        delay_ms: the rest of its delay, by the clock of its deadline (monotonic or wall); 0 when it was due.
        callback: the function that it would have called.
        args: the callback's arguments.
        key: its key; None: it had no key.
        every: how it recurs; None: it runs once.
    """

    delay_ms: int
    callback: Callable[..., Any]
    args: tuple[Any, ...]
    key: Hashable | None
    every: Every | None


class _Registry(Protocol):
    """The part of `TimerRegistry` that handles use."""

    lock: AbstractContextManager[Any]
    left_in_parent: bool

    def now_ms(self, handle: TimerHandle) -> int: ...
    def cancel(self, handle: TimerHandle) -> EntryState: ...
    def touch(self, handle: TimerHandle, delay_ms: float) -> bool: ...
    def reschedule(self, handle: TimerHandle, delay_ms: float) -> bool: ...
    def start(self, handle: TimerHandle) -> bool: ...
    def finish(self, handle: TimerHandle) -> None: ...


class TimerHandle:
    """One scheduled callback. Only a timer's methods make handles.

    Threads: any thread may use a handle of a `SystemTimer`. Only the loop's thread may use a handle of an `AsyncTimer`.
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
    _entry: TimerTaskEntry[TimerHandle] | None  # None while the handle is in no deadline queue
    _every: Every | None
    _key: Hashable | None
    _registry: _Registry
    _runs: int  # how many runs of the callback have begun and not ended
    _slack_ms: int
    _state: EntryState
    _wall: bool  # whether the deadline is a time of the wall clock

    @property
    def state(self) -> EntryState:
        """The state of the timer."""
        return EntryState.CANCELLED if self._registry.left_in_parent else self._state

    @property
    def deadline_ms(self) -> int:
        """When the timer is (or was) due, in ms of its clock (monotonic or wall), without slack."""
        return self._deadline_ms

    @property
    def key(self) -> Hashable | None:
        """The key of the timer; None when it has no key."""
        return self._key

    def remaining_ms(self) -> int:
        """How long until the timer is due, by its clock; 0 when it is due already."""
        return max(self._deadline_ms - self._registry.now_ms(self), 0)

    def cancel(self) -> EntryState:
        """Prevent all further runs of the callback. Returns the new state.

        CANCELLED: the timer waited; the callback begins no run, and the handle has dropped it and its arguments.
        RUNNING: the callback runs and is not interrupted; a recurring timer ends with this run. FIRED: the last run
        had ended already.
        """
        registry = self._registry
        with registry.lock:
            return registry.cancel(self)

    def touch(self, delay_ms: float) -> bool:
        """Set the deadline of a waiting timer to `delay_ms` from now. A later deadline costs little, for heartbeats.

        The timer may run before or after other timers of its new tick, in any order. Returns False and changes nothing
        when the timer does not wait, or when its `SystemTimer` or `AsyncTimer` is closed.

        Raises:
            Rejected: `delay_ms` is not a finite number; nothing was changed.
        """
        return self._registry.touch(self, delay_ms)

    def reschedule(self, delay_ms: float) -> bool:
        """Set the deadline to `delay_ms` from now, as if scheduled now. The timer may also be running or have fired.

        Returns False and changes nothing when the timer was cancelled (its callback is gone), when another timer has
        its key, or when its `SystemTimer` or `AsyncTimer` is closed.

        Raises:
            Rejected: `delay_ms` is not a finite number; nothing was changed.
        """
        return self._registry.reschedule(self, delay_ms)

    def __repr__(self) -> str:
        key = "" if self._key is None else f" key={self._key!r}"
        name = getattr(self._callback, "__qualname__", repr(self._callback))
        return f"<TimerHandle {self.state.value} deadline_ms={self._deadline_ms}{key} callback={name}>"
