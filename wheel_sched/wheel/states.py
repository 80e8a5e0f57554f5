"""What every core says of its entries and of itself, in the same words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EntryState(Enum):
    """Where an entry stands.

    PENDING -> RUNNING (handed out) -> FIRED (`finish`); PENDING -> CANCELLED, for good. `reschedule` leads from
    every state but CANCELLED back to PENDING.
    """

    PENDING = "pending"
    RUNNING = "running"
    FIRED = "fired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class WheelCounters:
    """What a wheel has done and holds.

    Args:
        pending: entries waiting.
        levels: entries waiting per level, lowest first, by where their ticks belong, up to the last level that holds
            something; at least one.
        cascades: moves of an entry to a finer place on its way to the lowest level. How many it takes is the core's.
        relocations: moves of an entry that `touch` had postponed, made when its old place came up.
        productive_wakeups: `advance` calls that handed something out.
        empty_wakeups: `advance` calls that did not.
    """

    pending: int
    levels: tuple[int, ...]
    cascades: int
    relocations: int
    productive_wakeups: int
    empty_wakeups: int
