"""The handle of a scheduled callback: what `schedule` answers on threads and on asyncio alike.

States are the wheel's: PENDING -> RUNNING -> FIRED, or PENDING -> CANCELLED for good. A timer is PENDING until its
callback begins, also while it stands in the queue of an executor, so each of its firings has one winner: the callback
or `cancel`. A recurring timer goes back from RUNNING to PENDING, as does one that is scheduled again.

Threads: as the timer it belongs to. On threads any thread may call anything; on asyncio the loop's thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from wheel_sched.timing.recurrence import Every
from wheel_sched.wheel import EntryState, TimerTaskEntry

if TYPE_CHECKING:
    from wheel_sched.timing.agenda import Agenda


class TimerHandle:
    """One scheduled callback, made by a timer's methods only."""

    __slots__ = (
        "__weakref__",
        "_agenda",
        "_args",
        "_callback",
        "_context",
        "_deadline_ms",
        "_entry",
        "_every",
        "_key",
        "_runs",
        "_slack_ms",
        "_state",
        "_wall",
    )

    # No __init__: passing ten arguments to one costs more than making the object.
    _agenda: Agenda
    _args: tuple[Any, ...]
    _callback: Callable[..., Any] | None  # None once cancelled
    _context: Context
    _deadline_ms: int
    _entry: TimerTaskEntry[TimerHandle] | None  # its place in a wheel; None when not (yet) in one
    _every: Every | None
    _key: Hashable | None
    _runs: int  # how many runs of the callback have begun and not ended
    _slack_ms: int
    _state: EntryState
    _wall: bool  # whether the deadline is one of the wall clock

    @property
    def state(self) -> EntryState:
        """Where the timer stands."""
        return EntryState.CANCELLED if self._agenda.lost else self._state

    @property
    def deadline_ms(self) -> int:
        """When it is (or was) due, in ms of the clock it waits for, monotonic or wall; slack is not in it."""
        return self._deadline_ms

    @property
    def key(self) -> Hashable | None:
        """The key it was scheduled under, None when without."""
        return self._key

    def remaining_ms(self) -> int:
        """How long until it is due by its clock; 0 when that has come."""
        return max(self._deadline_ms - self._agenda.now_ms(self), 0)

    def cancel(self) -> EntryState:
        """Keep the callback from running (again) and let go of it and its arguments. Answers the state it is now in.

        CANCELLED: it will not run. RUNNING: it has begun, which is not interrupted; a recurring timer ends with this
        run. FIRED: it was over already.
        """
        agenda = self._agenda
        with agenda.lock:
            return agenda.cancel(self)

    def touch(self, delay_ms: float) -> bool:
        """Be due `delay_ms` from now instead, if it still waits. Cheap when that is later: a heartbeat's primitive.

        A timer put off by `touch` has no claim to first come first served among those of its new tick. False, and
        nothing changed, when it does not wait (any more) or the timer is closed.

        Raises:
            Rejected: `delay_ms` is not a finite number; nothing was changed.
        """
        return self._agenda.touch(self, delay_ms)

    def reschedule(self, delay_ms: float) -> bool:
        """Be due `delay_ms` from now instead, as if scheduled now; also when it runs or has fired.

        False, and nothing changed, when it was cancelled (its callback is gone), another waits under its key, or the
        timer is closed.

        Raises:
            Rejected: `delay_ms` is not a finite number; nothing was changed.
        """
        return self._agenda.reschedule(self, delay_ms)

    def __repr__(self) -> str:
        key = "" if self._key is None else f" key={self._key!r}"
        name = getattr(self._callback, "__qualname__", repr(self._callback))
        return f"<TimerHandle {self.state.value} deadline_ms={self._deadline_ms}{key} callback={name}>"
