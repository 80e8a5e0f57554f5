"""Fixtures: a test of a timer runs on both facades and every core, and where possible on real and on virtual time.

A core is an implementation of the timing wheel: "pure" in Python, or "compiled". A facade hides whether the timer is a
`SystemTimer` or an `AsyncTimer`. A test is written once, in synchronous steps, against a `Facade`. The fixture
closes the facade's timers.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from wheel_sched.clock import Clock, SystemClock
from wheel_sched.testing import VirtualClock
from wheel_sched.testing.virtual_loop import VirtualEventLoop
from wheel_sched.timers import AsyncTimer, SystemTimer, queue
from wheel_sched.wheel import CORES, TimingWheel

Timer = SystemTimer | AsyncTimer

PATIENCE_S = 40.0  # the longest wait for an event; only a defect waits so long


class Facade(ABC):
    """One kind of timer on one kind of time.

    Attributes:
        clock: the clock of its timers.
        virtual: whether only the test moves time. If so, the test can check exact times.
    """

    clock: Clock
    virtual: bool
    errors: list[BaseException]  # errors that no handler took

    @abstractmethod
    def timer(self, tick_ms: int = 1, wheel_size: int = 4096, **options: Any) -> Any:
        """Make a timer."""

    @abstractmethod
    def pass_ms(self, ms: int) -> None:
        """Let time pass, and run the due callbacks of all timers."""

    @abstractmethod
    def until(self, happened: Callable[[], object]) -> None:
        """Let time pass until the condition is true."""

    @abstractmethod
    def wait(self, coroutine_or_state: Any) -> Any:
        """Return the result of a method call. On asyncio the call gives a coroutine, which is run first."""

    def now_ms(self) -> int:
        return self.clock.monotonic_ms()

    def wall(self, ms: int) -> datetime:
        """The date and time `ms` milliseconds from now."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self.clock.wall_ms() + ms)


class ThreadFacade(Facade):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.virtual = isinstance(clock, VirtualClock)
        self.errors = []
        self._timers: list[SystemTimer] = []

    def timer(self, tick_ms: int = 1, wheel_size: int = 4096, **options: Any) -> SystemTimer:
        options.setdefault("on_error", lambda _, error: self.errors.append(error))
        options.setdefault("clock", self.clock)
        timer = SystemTimer(tick_ms, wheel_size, **options)
        self._timers.append(timer)
        return timer

    def pass_ms(self, ms: int) -> None:
        if isinstance(self.clock, VirtualClock):
            target_ms = self.now_ms() + ms
            self._let_run()
            while self.now_ms() < target_ms:
                self.clock.advance(min(self._next_wake_ms(), target_ms) - self.now_ms())
                self._let_run()
        else:
            time.sleep(ms / 1000)  # real time is what this facade is about
            self._let_run()

    def until(self, happened: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < deadline, "it did not happen"
            if isinstance(self.clock, VirtualClock):
                self._let_run()
                if self._next_wake_ms() < math.inf:
                    self.clock.advance(self._next_wake_ms() - self.now_ms())
                    self._let_run()
            else:
                time.sleep(0.001)  # between two looks

    def wait(self, coroutine_or_state: Any) -> Any:
        return coroutine_or_state

    def close(self) -> None:
        for timer in self._timers:
            timer.close()

    def _next_wake_ms(self) -> float:
        """The earliest time at which a reaper thread wakes. Call it only while all reapers sleep."""
        left_ms = (timer._sleeps_until - timer.clock.monotonic_ms() for timer in self._timers if not timer.closed)
        return self.now_ms() + min(left_ms, default=math.inf)

    def _let_run(self) -> None:
        """Wait until every reaper has run its due timers and sleeps again."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(self._sleeps(timer) for timer in self._timers):
            assert time.monotonic() < deadline, "a reaper does not come to rest"
            time.sleep(0.0002)  # between two looks

    def _sleeps(self, timer: SystemTimer) -> bool:
        with timer._guard:
            return timer.closed or timer._sleeps_until > timer.clock.monotonic_ms()


class LoopFacade(Facade):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        clock = getattr(loop, "clock", None)
        self.virtual = clock is not None
        self.clock = SystemClock() if clock is None else clock
        self.errors = []
        self._timers: list[AsyncTimer] = []

    def timer(self, tick_ms: int = 1, wheel_size: int = 4096, **options: Any) -> AsyncTimer:
        options.setdefault("on_error", lambda _, error: self.errors.append(error))
        timer = AsyncTimer(tick_ms, wheel_size, loop=self.loop, **options)
        self._timers.append(timer)
        return timer

    def pass_ms(self, ms: int) -> None:
        self.wait(asyncio.sleep(ms / 1000))
        self.wait(asyncio.sleep(0))

    def until(self, happened: Callable[[], object]) -> None:
        async def look() -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not happened():
                assert time.monotonic() < deadline, "it did not happen"
                nexts = [n for timer in self._timers if not timer.closed and (n := timer.next_ms()) is not None]
                left_ms = max(min(nexts, default=0) - self.now_ms(), 1) if self.virtual else 1
                await asyncio.sleep(left_ms / 1000)

        self.wait(look())

    def wait(self, coroutine_or_state: Any) -> Any:
        return self.loop.run_until_complete(coroutine_or_state)

    def close(self) -> None:
        for timer in self._timers:
            timer.close()
            self.wait(timer.wait_closed())


def loop_of(kind: str) -> asyncio.AbstractEventLoop:
    if kind == "asyncio-virtual":
        return VirtualEventLoop()
    if kind == "uvloop":
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


def made(kind: str) -> Iterator[Facade]:
    """Make a facade of a kind, such as "threads" or "asyncio-virtual". A kind such as "threads/pure" also selects
    the core of the wheel, "pure" or "compiled"."""
    kind, _, core = kind.partition("/")
    with pytest.MonkeyPatch.context() as patch:
        if core:
            patch.setattr(queue, "TimingWheel", CORES[core])
        yield from made_of(kind)


def made_of(kind: str) -> Iterator[Facade]:
    if kind.startswith("threads"):
        facade = ThreadFacade(VirtualClock() if kind == "threads-virtual" else SystemClock())
        yield facade
        facade.close()
        return
    with asyncio.Runner(loop_factory=lambda: loop_of(kind)) as runner:
        over_loop = LoopFacade(runner.get_loop())
        yield over_loop
        over_loop.close()


VIRTUAL = [f"{kind}/{core}" for kind in ("threads-virtual", "asyncio-virtual") for core in sorted(CORES)]
REAL = ["threads", "asyncio", *([] if sys.platform == "win32" else ["uvloop"])]
# Tests in real time are slow. They always run on the core that programs get, on others only in the slow layer.
OTHER_CORES = [core for core in sorted(CORES) if CORES[core] is not TimingWheel]
REAL_OTHERS = [pytest.param(f"{kind}/{core}", marks=pytest.mark.slow) for core in OTHER_CORES for kind in REAL]


@pytest.fixture(params=VIRTUAL)
def virtual(request: pytest.FixtureRequest) -> Iterator[Facade]:
    """Each facade on virtual time, with every core of the wheel. A test with this fixture can check exact times."""
    yield from made(request.param)


@pytest.fixture(params=[*VIRTUAL, *REAL, *REAL_OTHERS])
def facade(request: pytest.FixtureRequest) -> Iterator[Facade]:
    """Each facade on every kind of time and loop, with every core of the wheel.

    The test can check the order, and that no timer is early.
    """
    yield from made(request.param)


@pytest.fixture(params=[kind for kind in [*VIRTUAL, *REAL, *REAL_OTHERS] if "threads" not in str(kind)])
def loops(request: pytest.FixtureRequest) -> Iterator[Facade]:
    """The asyncio facade on every kind of loop, with every core of the wheel."""
    yield from made(request.param)


@pytest.fixture(params=sorted(CORES))
def threads(request: pytest.FixtureRequest) -> Iterator[Facade]:
    """The facade of reaper threads on virtual time, with every core of the wheel."""
    yield from made(f"threads-virtual/{request.param}")


@pytest.fixture(params=sorted(CORES))
def loop_facade(request: pytest.FixtureRequest) -> Iterator[Facade]:
    """The asyncio facade on virtual time, with every core of the wheel."""
    yield from made(f"asyncio-virtual/{request.param}")
