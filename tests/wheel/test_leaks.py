"""Memory: entries that were handed out or cancelled are freed."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wheel_sched.wheel import CORES, TimingWheel

Core = type[TimingWheel[Any]]


@pytest.fixture
def traced() -> Iterator[None]:
    """Counts Python's allocations during the test."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def churn(wheel: TimingWheel[Any], now_ms: int, rounds: int) -> int:
    """Add and remove entries in every way, for `rounds` rounds of 3 ms. Return the new time in ms."""
    for _ in range(rounds):
        now_ms += 3
        wheel.schedule("cancelled", now_ms + 5000).cancel()
        wheel.schedule("fired", now_ms + 40)
        entry = wheel.schedule("moved", now_ms + 700)
        entry.touch(now_ms + 900)
        entry.reschedule(now_ms + 20)
        wheel.schedule("far", now_ms + 10**30).cancel()
        wheel.next_expiry()
        for due in wheel.advance(now_ms):
            due.finish()
    return now_ms


def test_references_are_given_back(core: Core) -> None:
    """The reference count of a task does not change, however its entries leave the wheel."""
    task, wheel = object(), core()
    before = sys.getrefcount(task)
    entries = [wheel.schedule(task, deadline_ms) for deadline_ms in (1, 1, 500, 10**6, 10**30)]
    entries[1].cancel()
    entries[2].reschedule(10**31)
    entries[3].touch(10**32)
    wheel.restore(wheel.snapshot())
    wheel.advance(500)
    wheel.clear()
    del entries, wheel
    gc.collect()
    assert sys.getrefcount(task) == before


@pytest.mark.usefixtures("traced")
def test_fifty_thousand_operations_leave_nothing_behind(core: Core) -> None:
    """After 10,000 operations, Python's allocations do not grow in 40,000 more."""
    wheel = core()
    now_ms = churn(wheel, 0, 1_000)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    churn(wheel, now_ms, 4_000)
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] - before < 20_000


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident set from /proc")
def test_memory_goes_back_when_all_are_cancelled_in_any_order(core: Core) -> None:
    """Less than 40 per cent of the memory of 300,000 timers remains after they are cancelled in random order."""
    code = (
        "import random, sys\n"
        f"from {core.__module__} import TimingWheel\n"
        "from pathlib import Path\n"
        "def resident(): return int(Path('/proc/self/statm').read_text('ascii').split()[1]) * 4096\n"
        "wheel, order, entries = TimingWheel(), list(range(300_000)), [None] * 300_000\n"
        "random.Random(1).shuffle(order)\n"
        "before = resident()\n"
        "for number in order: entries[number] = wheel.schedule(None, 12 * number)\n"
        "full = resident()\n"
        "random.Random(2).shuffle(order)\n"
        "for number in order:\n"
        "    entries[number].cancel()\n"
        "    entries[number] = None\n"
        "print((resident() - before) / (full - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=120, check=True)
    assert float(done.stdout) < 0.4


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident set from /proc")
def test_millions_of_operations_leave_the_process_as_it_was(core: Core) -> None:
    """After a million operations, the process's resident memory does not grow in ten million more.

    The pure core, which is slower, does a tenth of them. A leak of four bytes an operation would show there too.
    """

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096

    wheel = core()
    rounds = 1_000_000 if core is CORES.get("compiled") else 100_000  # ten operations each
    now_ms = churn(wheel, 0, rounds // 10)
    before = resident()
    churn(wheel, now_ms, rounds)
    assert resident() - before < 4_000_000
