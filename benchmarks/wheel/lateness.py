"""How late real timers are: `SystemTimer` and `AsyncTimer` on the machine's clock, judged by the callback itself.

The deadline is taken before the timer is asked, from the clock the callback reads: early is early by any rounding.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import NamedTuple

from benchmarks.rounds import spread
from wheel_sched.aio import AsyncTimer
from wheel_sched.timer import SystemTimer

_LEAD_MS = 300  # for scheduling them all


class Late(NamedTuple):
    """What the callbacks saw."""

    lateness_ms: dict[str, float]
    early: int


def on_threads(count: int, over_s: float) -> Late:
    """`count` timers, evenly over `over_s` seconds, called by the reaper."""
    late_ns: list[int] = []
    done = threading.Event()

    def fire(deadline_ns: int) -> None:
        late_ns.append(time.monotonic_ns() - deadline_ns)
        if len(late_ns) == count:
            done.set()

    with SystemTimer() as timer:
        for delay_ms in _delays_ms(count, over_s):
            timer.schedule(delay_ms, fire, time.monotonic_ns() + int(delay_ms * 1_000_000))
        assert done.wait(over_s + 60), f"{count - len(late_ns)} of {count} timers never fired"
    return _judged(late_ns)


def on_asyncio(count: int, over_s: float) -> Late:
    """The same on one event loop."""
    return asyncio.run(_on_asyncio(count, over_s))


async def _on_asyncio(count: int, over_s: float) -> Late:
    late_ns: list[int] = []
    done = asyncio.Event()

    def fire(deadline_ns: int) -> None:
        late_ns.append(time.monotonic_ns() - deadline_ns)
        if len(late_ns) == count:
            done.set()

    async with AsyncTimer() as timer:
        for delay_ms in _delays_ms(count, over_s):
            timer.schedule(delay_ms, fire, time.monotonic_ns() + int(delay_ms * 1_000_000))
        await asyncio.wait_for(done.wait(), over_s + 60)
    return _judged(late_ns)


def _delays_ms(count: int, over_s: float) -> list[float]:
    return [_LEAD_MS + number * over_s * 1000 / count for number in range(count)]


def _judged(late_ns: list[int]) -> Late:
    return Late(spread([ns / 1_000_000 for ns in late_ns]), sum(ns < 0 for ns in late_ns))
