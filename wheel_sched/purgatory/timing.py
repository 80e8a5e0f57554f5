"""What a purgatory needs of time: `SystemTimer`, `AsyncTimer` and `Reaper` have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Handle(Protocol):
    """What a timer gives for a callback that waits."""

    def cancel(self) -> object:
        """Do not call it any more, and let go of it. Any thread; without effect once it has been called."""
        ...

    @property
    def deadline_ms(self) -> int:
        """When it is or was due, by the timer's clock."""
        ...


class Timer(Protocol):
    """What a purgatory needs of time. It calls back under no lock, and never within `schedule`."""

    def schedule(self, delay_ms: int, callback: Callable[[], object], /) -> Handle:
        """Have `callback` called once, not before `delay_ms` have passed."""
        ...
