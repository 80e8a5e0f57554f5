"""The purgatory of an event loop: the loop expires the operations.

    async with AsyncPurgatory() as purgatory:
        purgatory.try_complete_else_watch(operation, ["key"])
        ended = await operation.completed

Threads: only the loop's thread may call a purgatory; any loop may await `completed`. Other threads use
`loop.call_soon_threadsafe(purgatory.check_and_complete, key)`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from wheel_sched.clock import Clock
from wheel_sched.purgatory.operation import DelayedOperation
from wheel_sched.purgatory.purgatory import Purgatory
from wheel_sched.timers import AsyncTimer

K = TypeVar("K", bound=Hashable)


class AsyncPurgatory(Purgatory[K]):
    """A `Purgatory` in the running event loop, whose timer expires the operations.

    Args:
        timer: expires the operations; the caller closes it. Defaults to a new `AsyncTimer`, which `close` closes.
        clock: the timer's clock. Defaults to the machine's.
        on_error: see `Purgatory`. The timer's error handler, by default the loop's, receives the errors in callbacks of
            expired operations.

    Raises:
        RuntimeError: no timer was given, and no loop runs.
    """

    def __init__(
        self,
        timer: AsyncTimer | None = None,
        *,
        clock: Clock | None = None,
        on_error: Callable[[DelayedOperation, Exception], object] | None = None,
    ) -> None:
        self._own = AsyncTimer(clock=clock) if timer is None else None
        super().__init__(timer or self._own, clock=clock, on_error=on_error)

    def close(self) -> list[DelayedOperation]:
        """Do what `Purgatory.close` does, and close the timer unless the caller gave it."""
        forced = super().close()
        if self._own is not None:
            self._own.close()
        return forced

    async def __aenter__(self) -> AsyncPurgatory[K]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
