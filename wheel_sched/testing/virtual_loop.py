"""An asyncio event loop on virtual time: a sleep of an hour ends at once, and all timers keep their order.

    with asyncio.Runner(loop_factory=VirtualEventLoop) as runner:
        runner.run(main())

It is asyncio's own selector loop with another clock. When nothing is ready and no thread of its executor works, time
jumps to the next timer of the loop. Real sockets work, but virtual time may jump while data is on its way. So set
`idle_seconds` in programs that talk to other programs. Do not use a `SystemTimer` on the same clock: the loop does not
know when the timer's thread wants to wake.

Invariant: time never jumps past a timer of the loop, and never during a `run_in_executor` or `to_thread`, unless its
future was cancelled.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from wheel_sched.errors import ConfigError
from wheel_sched.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

CLOCK_RESOLUTION = 1e-6  # asyncio's own 1e-9 s is lost in the rounding of float seconds beyond 2**24
POLL_SECONDS = 0.001  # how often a loop without jumps checks whether its clock was moved


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """asyncio's selector loop on a `VirtualClock`.

    Args:
        clock: the clock of `loop.time()`, also available as `loop.clock`. Any thread may call
            `clock.advance`, the loop's own thread too. Defaults to a new clock.
        autojump: whether time jumps when the loop is idle. If not, only `clock.advance` moves time. Defaults to True.
        idle_seconds: real seconds without input before a jump. Defaults to 0.

    Raises:
        ConfigError: lists all wrong arguments.
    """

    _closed = True  # until asyncio has set the loop up; prevents a warning when arguments are refused

    def __init__(self, clock: VirtualClock | None = None, *, autojump: bool = True, idle_seconds: float = 0.0) -> None:
        problems = []
        if clock is not None and not isinstance(clock, VirtualClock):
            problems.append(f"expected clock to be None or a VirtualClock, got: {clock!r}")
        if not isinstance(idle_seconds, int | float) or not 0 <= idle_seconds < math.inf:
            problems.append(f"expected idle_seconds to be at least 0 (real seconds), got: {idle_seconds!r}")
        if problems:
            raise ConfigError(problems)
        self.clock = VirtualClock() if clock is None else clock
        self._in_executor = 0
        super().__init__(_JumpingSelector(self._wait_for_time))
        self._clock_resolution = CLOCK_RESOLUTION
        self._autojump = autojump
        self._idle_seconds = idle_seconds

    def time(self) -> float:
        """The virtual time in seconds, from a clock that never goes back."""
        return self.clock.monotonic_ns() / 1e9

    def run_in_executor(  # type: ignore[override]  # typeshed spells the arguments as a TypeVarTuple
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Does what asyncio's method does. Time does not jump until `func` has returned or the future is cancelled."""
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._in_executor += 1
        future.add_done_callback(self._left_executor)
        return future

    async def shutdown_default_executor(self, *timeout: float | None) -> None:
        """Does what asyncio's method does. Virtual time does not move, so the timeout cannot pass while threads end."""
        self._in_executor += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._in_executor -= 1

    def _left_executor(self, _: asyncio.Future[Any]) -> None:
        self._in_executor -= 1

    def _wait_for_time(self, select: _Select, timeout: float) -> _Ready:
        """Wait until a socket is ready or `timeout` virtual seconds have passed. Returns the ready sockets."""
        if self._in_executor:
            return select(None)  # the end of the call wakes the loop through its own socket
        # Rounded to microseconds, which is exact enough for the loop, so that float errors do not add up.
        until_ns = max(round((self.time() + timeout) * 1e6), self.clock.monotonic_ns() // 1000 + 1) * 1000
        if self._autojump:
            if not (ready := select(self._idle_seconds)):
                self.clock.advance(max(until_ns - self.clock.monotonic_ns(), 0) / 1e6)
            return ready
        while not (ready := select(POLL_SECONDS)) and self.clock.monotonic_ns() < until_ns:
            pass
        return ready


_Ready = list[tuple[selectors.SelectorKey, int]]
_Select = Callable[[float | None], _Ready]


class _JumpingSelector(selectors.BaseSelector):
    """The platform's selector. To wait it calls a function of the event loop, which may let virtual time jump."""

    def __init__(self, wait_for_time: Callable[[_Select, float], _Ready]) -> None:
        self._real = selectors.DefaultSelector()
        self._wait_for_time = wait_for_time

    def select(self, timeout: float | None = None) -> _Ready:
        if timeout is None or timeout <= 0:
            return self._real.select(timeout)
        return self._wait_for_time(self._real.select, timeout)

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()
