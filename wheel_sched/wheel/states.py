"""The states of an entry and the counters of a wheel, for every core."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EntryState(Enum):
    """Where an entry stands.

    PENDING -> RUNNING (handed out) -> FIRED (`finish`), or PENDING -> CANCELLED for good. `reschedule` leads back to
    PENDING from every state except CANCELLED.
    """

    PENDING = "pending"
    RUNNING = "running"
    FIRED = "fired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class WheelCounters:
    """What a wheel has done, and what it holds.

    Args:
        pending: entries waiting.
        levels: entries waiting per level, lowest first; each counts where its tick belongs. Up to the last level that
            holds something; at least one.
        cascades: moves of an entry to a finer place on its way to the lowest level. The number depends on the core.
        relocations: moves of entries that `touch` had postponed, made when their old place came up.
        productive_wakeups: `advance` calls that handed something out.
        empty_wakeups: `advance` calls that did not.
    """

    pending: int
    levels: tuple[int, ...]
    cascades: int
    relocations: int
    productive_wakeups: int
    empty_wakeups: int
