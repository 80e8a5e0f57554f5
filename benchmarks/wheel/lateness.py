"""Measures how late `SystemTimer` and `AsyncTimer` are on the machine's clock. The callback reads the time.

A timer is early if its callback runs before the wanted time: the time that the clock shows before the call of
`schedule`, plus the delay. Lateness counts from `deadline_ms` of the handle, which the timer has rounded up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.rounds import spread
from wheel_sched.timers import AsyncTimer, SystemTimer

_LEAD_MS = 300  # time for scheduling all timers


class Late(NamedTuple):
    """Lateness in ms, and how many callbacks were early."""

    lateness_ms: dict[str, float]
    early: int


def on_threads(count: int, over_s: float) -> Late:
    """Measure `count` timers, spread evenly over `over_s` seconds, whose callbacks the reaper calls."""
    done = threading.Event()
    fired, fire = _recorder(count, done.set)
    with SystemTimer() as timer:
        asked = _ask(timer, fire, count, over_s)
        assert done.wait(over_s + 60), f"{count - len(fired)} of {count} timers never fired"
    return _judged(asked, fired)


def on_asyncio(count: int, over_s: float) -> Late:
    """Measure `count` timers, spread evenly over `over_s` seconds, whose callbacks an event loop calls."""
    return asyncio.run(_on_asyncio(count, over_s))


async def _on_asyncio(count: int, over_s: float) -> Late:
    done = asyncio.Event()
    fired, fire = _recorder(count, done.set)
    async with AsyncTimer() as timer:
        asked = _ask(timer, fire, count, over_s)
        await asyncio.wait_for(done.wait(), over_s + 60)
    return _judged(asked, fired)


def on_a_bare_thread(count: int, over_s: float) -> Late:
    """The baseline of `on_threads`: a thread that waits on a condition until each deadline, without a timer."""
    wanted_ns = _wanted_ns(count, over_s)
    fired: dict[int, int] = {}
    condition = threading.Condition()
    for number, due_ns in enumerate(wanted_ns):
        with condition:
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                condition.wait(left_ns / 1e9)
        fired[number] = time.monotonic_ns()
    return _judged([(due_ns, due_ns) for due_ns in wanted_ns], fired)


def on_a_bare_loop(count: int, over_s: float) -> Late:
    """The baseline of `on_asyncio`: the event loop's own `call_later`."""
    return asyncio.run(_on_a_bare_loop(count, over_s))


async def _on_a_bare_loop(count: int, over_s: float) -> Late:
    wanted_ns = _wanted_ns(count, over_s)
    done = asyncio.Event()
    fired, fire = _recorder(count, done.set)
    for number, due_ns in enumerate(wanted_ns):
        asyncio.get_running_loop().call_later((due_ns - time.monotonic_ns()) / 1e9, fire, number)
    await asyncio.wait_for(done.wait(), over_s + 60)
    return _judged([(due_ns, due_ns) for due_ns in wanted_ns], fired)


def _recorder(count: int, all_fired: Callable[[], None]) -> tuple[dict[int, int], Callable[[int], None]]:
    """Make a dict for the times of calls, in ns by timer number, and the callback of the timers, which fills it.

    The last of `count` calls calls `all_fired`.
    """
    fired: dict[int, int] = {}

    def fire(number: int) -> None:
        fired[number] = time.monotonic_ns()
        if len(fired) == count:
            all_fired()

    return fired, fire


def _wanted_ns(count: int, over_s: float) -> list[int]:
    start_ns = time.monotonic_ns() + _LEAD_MS * 1_000_000
    return [start_ns + int(number * over_s * 1e9 / count) for number in range(count)]


def _ask(
    timer: SystemTimer | AsyncTimer, fire: Callable[[int], None], count: int, over_s: float
) -> list[tuple[int, int]]:
    """Schedule the timers. Returns for each the wanted time, and the deadline of its handle, both in nanoseconds."""
    asked = []
    for number in range(count):
        delay_ms = _LEAD_MS + number * over_s * 1000 / count
        wanted_ns = time.monotonic_ns() + int(delay_ms * 1_000_000)
        asked.append((wanted_ns, timer.schedule(delay_ms, fire, number).deadline_ms * 1_000_000))
    return asked


def _judged(asked: list[tuple[int, int]], fired: dict[int, int]) -> Late:
    late_ms = [(fired[number] - due_ns) / 1_000_000 for number, (_, due_ns) in enumerate(asked)]
    return Late(spread(late_ms), sum(fired[number] < wanted_ns for number, (wanted_ns, _) in enumerate(asked)))
