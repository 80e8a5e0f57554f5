"""Fixtures: purgatories in virtual time on a reaper, on `SystemTimer`, on asyncio, and on a timer that a test steps.

`Reaper` and `SystemTimer` have a thread that wakes when the clock is moved, so `World.advance` waits for the operations
that are due.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from wheel_sched.purgatory import AsyncPurgatory, DelayedOperation, Purgatory, Reaper
from wheel_sched.testing import VirtualClock
from wheel_sched.testing.virtual_loop import VirtualEventLoop
from wheel_sched.timers import AsyncTimer, SystemTimer
from wheel_sched.wheel import TimingWheel

PATIENCE_S = 30.0  # real seconds for which a test waits for other threads


class Probe(DelayedOperation):
    """An operation that is complete when the test sets `ready`. It counts its tries, completions and expirations."""

    def __init__(self, timeout_ms: int = 1000, *, ready: bool = False, lock: Any = None) -> None:
        super().__init__(timeout_ms, lock=lock)
        self.ready = ready
        self.tries = 0
        self.completions = 0
        self.expirations = 0

    def try_complete(self) -> bool:
        self.tries += 1
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.completions += 1

    def on_expiration(self) -> None:
        self.expirations += 1


class HandTimer:
    """A timer without a thread: a test steps it by `advance`."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.wheel: TimingWheel[Callable[[], object]] = TimingWheel(clock.monotonic_ms())

    def schedule(self, delay_ms: int, callback: Callable[[], object]) -> Any:
        return self.wheel.schedule(callback, self.clock.monotonic_ms() + delay_ms)

    def advance(self, ms: int) -> None:
        end_ms = self.clock.monotonic_ms() + ms
        while (next_ms := self.wheel.next_expiry()) is not None and next_ms <= end_ms:
            self.clock.advance(max(0, next_ms - self.clock.monotonic_ms()))
            for entry in self.wheel.advance(self.clock.monotonic_ms()):
                if entry.task is not None:
                    entry.task()
        self.clock.advance(end_ms - self.clock.monotonic_ms())


class World:
    """A purgatory and its clock."""

    def __init__(self, purgatory: Purgatory[Any], clock: VirtualClock, advance: Callable[[int], None]) -> None:
        self.purgatory = purgatory
        self.clock = clock
        self.advance = advance


def _threads(clock: VirtualClock, purgatory: Purgatory[Any]) -> Callable[[int], None]:
    def advance(ms: int) -> None:
        """Move time step by step, because the timer's thread must run at each step."""
        for _ in range(ms):
            clock.advance(1)
        marker = Probe(0)
        purgatory.try_complete_else_watch(marker, [object()])
        until_s = time.monotonic() + PATIENCE_S
        while marker.wait(1.0) is None:
            assert time.monotonic() < until_s, "the timer's thread did not run"
            clock.advance(1)  # its sleep may have begun at a later tick than its deadline was computed from

    return advance


@pytest.fixture(params=["hand", "reaper", "system timer", "asyncio"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A purgatory of each kind, with its clock."""
    clock = VirtualClock()
    with ExitStack() as stack:
        if request.param == "hand":
            timer = HandTimer(clock)
            yield World(stack.enter_context(Purgatory(timer, clock=clock)), clock, timer.advance)
        elif request.param == "reaper":
            reaper = stack.enter_context(Reaper(clock=clock))
            purgatory: Purgatory[Any] = stack.enter_context(Purgatory(reaper, clock=clock))
            yield World(purgatory, clock, _threads(clock, purgatory))
        elif request.param == "system timer":
            system = stack.enter_context(SystemTimer(clock=clock))
            purgatory = stack.enter_context(Purgatory(system, clock=clock))
            yield World(purgatory, clock, _threads(clock, purgatory))
        else:
            loop = VirtualEventLoop(clock)
            stack.callback(loop.close)
            in_loop = AsyncTimer(loop=loop)
            stack.callback(in_loop.close)
            purgatory = stack.enter_context(AsyncPurgatory(in_loop, clock=clock))
            yield World(purgatory, clock, lambda ms: loop.run_until_complete(asyncio.sleep((ms + 0.5) / 1000)))


@pytest.fixture
def probe() -> type[Probe]:
    """Makes operations that count their tries, completions and expirations."""
    return Probe


@pytest.fixture
def new_threads() -> Callable[[], list[threading.Thread]]:
    """Return a function that lists the running threads which this test has started."""
    earlier = set(threading.enumerate())
    return lambda: [thread for thread in threading.enumerate() if thread not in earlier]


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Return a function that waits until other threads have made a condition true."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not become true"
            time.sleep(0.001)  # polling: what is waited for has no signal

    return wait


@pytest.fixture
def run_all() -> Callable[[list[Callable[[], object]]], None]:
    """Return a function that runs functions at the same time, one thread each, and raises the first error."""

    def run(functions: list[Callable[[], object]]) -> None:
        problems: list[BaseException] = []
        start = threading.Barrier(len(functions))

        def guarded(function: Callable[[], object]) -> None:
            try:
                start.wait(PATIENCE_S)
                function()
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        if problems:
            raise problems[0]
        assert not any(thread.is_alive() for thread in threads), "a thread hangs: a deadlock"

    return run
