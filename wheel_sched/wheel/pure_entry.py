"""The pure core's entry: what `schedule` answers. Its wheel is in `pure`; both know each other's insides, for speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from wheel_sched.wheel.arguments import whole
from wheel_sched.wheel.states import EntryState

if TYPE_CHECKING:
    from wheel_sched.wheel.pure import TimingWheel

T = TypeVar("T")

# Globals, because looking a member up on an Enum class costs as much as a dict insert.
_PENDING: Final = EntryState.PENDING
_RUNNING: Final = EntryState.RUNNING
_FIRED: Final = EntryState.FIRED
_CANCELLED: Final = EntryState.CANCELLED


class TimerTaskEntry(Generic[T]):
    """The handle of one scheduled task, made by `TimingWheel.schedule` only."""

    __slots__ = ("_deadline_ms", "_slot", "_task", "_wheel")

    # No __init__: passing five arguments to one costs more than making the object.
    _deadline_ms: int
    _slot: TimerTaskList[T] | EntryState  # what it waits in; the state when it does not wait: a field less is 16 bytes
    _task: T | None
    _wheel: TimingWheel[T]

    @property
    def task(self) -> T | None:
        """What was scheduled; None once cancelled, so that a kept handle keeps nothing else alive."""
        return self._task

    @property
    def deadline_ms(self) -> int:
        """The deadline as given, not rounded to a tick."""
        return self._deadline_ms

    @property
    def state(self) -> EntryState:
        """Where the entry stands."""
        slot = self._slot
        return _PENDING if type(slot) is dict else slot  # type: ignore[return-value]  # else it is one

    def cancel(self) -> EntryState:
        """Take the entry out at once and let go of its task. Answers the state the entry is now in.

        CANCELLED: it will not be handed out (again). RUNNING, FIRED: too late, nothing changed.
        """
        slot = self._slot
        try:  # costs nothing when it waits, a look at the type does
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
        """Say that a handed-out task has been run. Without effect on an entry that was armed again meanwhile."""
        if self._slot is _RUNNING:
            self._slot = _FIRED

    def reschedule(self, deadline_ms: int) -> bool:
        """Wait for `deadline_ms` instead, as if scheduled now; arms an entry again that was handed out.

        False, and nothing changed, when the entry was cancelled: its task is gone.
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
        """Postpone a waiting entry by writing its deadline down; it moves when its old place comes up.

        The cheap way to keep a heartbeat alive. An earlier deadline is a `reschedule`. False, and nothing changed,
        when the entry does not wait (any more).
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
