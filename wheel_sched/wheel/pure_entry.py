"""The entry that `schedule` of the pure core returns. For speed, entry and wheel use each other's private fields."""

from __future__ import annotations

from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from wheel_sched.wheel.arguments import whole
from wheel_sched.wheel.states import EntryState

T = TypeVar("T")

# Globals, because looking a member up on an Enum class costs as much as a dict insert.
_PENDING: Final = EntryState.PENDING
_RUNNING: Final = EntryState.RUNNING
_FIRED: Final = EntryState.FIRED
_CANCELLED: Final = EntryState.CANCELLED


class _Wheel(Protocol[T]):
    """The part of `TimingWheel` that its entries use."""

    _pending: int

    def _place(self, entry: TimerTaskEntry[T]) -> None: ...
    def _emptied(self) -> None: ...


class TimerTaskEntry(Generic[T]):
    """The handle of one task. Only the methods of `TimingWheel` make entries."""

    __slots__ = ("_deadline_ms", "_slot", "_task", "_wheel")

    # There is no __init__: passing the arguments to it would cost more than making the object.
    _deadline_ms: int
    _slot: TimerTaskList[T] | EntryState  # the slot of a waiting entry, otherwise its state; one field saves memory
    _task: T | None
    _wheel: _Wheel[T]

    @property
    def task(self) -> T | None:
        """The scheduled task; None after a cancel, so that a kept handle does not keep the task alive."""
        return self._task

    @property
    def deadline_ms(self) -> int:
        """The deadline as given, not rounded to a tick."""
        return self._deadline_ms

    @property
    def state(self) -> EntryState:
        """The state of the entry."""
        slot = self._slot
        return _PENDING if type(slot) is dict else slot  # type: ignore[return-value]  # otherwise it is the state

    def cancel(self) -> EntryState:
        """Remove the entry at once and drop its task. Returns the new state of the entry.

        CANCELLED: the wheel will never hand the entry out again. RUNNING or FIRED: the entry does not wait (it
        was handed out, or never scheduled); nothing changed.
        """
        slot = self._slot
        try:  # unlike a check of the type, this costs nothing when the entry waits
            del slot[self]  # type: ignore[union-attr]
        except TypeError:
            return slot  # type: ignore[return-value]
        self._slot = _CANCELLED
        self._wheel._pending -= 1
        if not slot and not self._wheel._pending:
            self._wheel._emptied()
        self._task = None  # last: its finalizer may call anything
        return _CANCELLED

    def finish(self) -> None:
        """Mark a handed-out task as run. This has no effect when the entry waits again."""
        if self._slot is _RUNNING:
            self._slot = _FIRED

    def reschedule(self, deadline_ms: int) -> bool:
        """Wait for `deadline_ms` instead, as if scheduled now. An entry that was handed out waits again.

        Returns False and changes nothing when the entry was cancelled: its task is gone.

        Raises:
            Rejected: `deadline_ms` is not an int; nothing was changed.
        """
        if type(deadline_ms) is not int:
            deadline_ms = whole("deadline_ms", deadline_ms)
        slot, wheel = self._slot, self._wheel
        if type(slot) is dict:
            del slot[self]
        elif slot is _CANCELLED:
            return False
        else:
            wheel._pending += 1
        self._deadline_ms = deadline_ms
        wheel._place(self)
        return True

    def touch(self, deadline_ms: int) -> bool:
        """Postpone a waiting entry: note the new deadline now, and move the entry when the wheel gets to its old slot.

        This is the cheapest way to postpone one deadline again and again, as heartbeats do. For an earlier deadline
        `touch` does what `reschedule` does. Returns False and changes nothing when the entry does not wait.

        Raises:
            Rejected: `deadline_ms` is not an int; nothing was changed.
        """
        if type(deadline_ms) is not int:
            deadline_ms = whole("deadline_ms", deadline_ms)
        if type(self._slot) is not dict:
            return False
        if deadline_ms < self._deadline_ms:
            return self.reschedule(deadline_ms)
        self._deadline_ms = deadline_ms
        return True

    def __repr__(self) -> str:
        return f"<TimerTaskEntry {self.state.value} deadline_ms={self._deadline_ms} task={self._task!r}>"


TimerTaskList: TypeAlias = dict[TimerTaskEntry[T], Any]
