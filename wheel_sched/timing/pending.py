"""What a closed timer gives back."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from wheel_sched.timing.recurrence import Every


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """A timer that had not run when its face was closed; enough to schedule it elsewhere.

    Args:
        delay_ms: how much of its delay was left, by its own clock; 0 when it was due.
        callback: what it would have called.
        args: and with what.
        key: its key, None when it had none.
        every: how it recurs, None when once.
    """

    delay_ms: int
    callback: Callable[..., Any]
    args: tuple[Any, ...]
    key: Hashable | None
    every: Every | None
