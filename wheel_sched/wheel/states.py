"""The states of an entry and the counters of a wheel, for the wheel in Python and for the compiled wheel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EntryState(Enum):
    """The state of an entry.

    A scheduled entry is PENDING. `advance` makes it RUNNING, and `finish` then makes it FIRED. `cancel` makes a PENDING
    entry CANCELLED, for good. `reschedule` makes an entry PENDING again from every state except CANCELLED.
    """

    PENDING = "pending"
    RUNNING = "running"
    FIRED = "fired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class WheelCounters:
    """The counters of a wheel: work done, and waiting entries.

    Args:
        pending: number of waiting entries.
        levels: number of waiting entries per level, lowest first, as if each level had `wheel_size` slots; in the
            compiled wheel at most 64. Each entry counts at the level of its tick. The list ends with the last level
            that holds an entry, and has at least one number.
        cascades: moves of an entry to a finer slot on its way to the lowest level. The wheel in Python and the compiled
            wheel may give different numbers.
        relocations: moves of entries that `touch` had postponed; an entry moves when the clock reaches its old slot, or
            when `next_expiry` searches that slot.
        productive_wakeups: `advance` calls that handed out an entry.
        empty_wakeups: `advance` calls that handed out nothing.
    """

    pending: int
    levels: tuple[int, ...]
    cascades: int
    relocations: int
    productive_wakeups: int
    empty_wakeups: int
