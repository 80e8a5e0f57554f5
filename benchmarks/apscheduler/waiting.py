"""Waiting: how late jobs are at a steady rate, how long `add_job` takes beside a burst, how long an event loop stalls.

The code that waits reads the clock itself: a job when it runs, the caller of `add_job` when the call returns, and a
coroutine when the event loop runs it again.
"""

from __future__ import annotations

import asyncio
import gc
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import EVENT_SCHEDULER_SHUTDOWN

from benchmarks.apscheduler.drains import fill
from benchmarks.apscheduler.making import (
    count_async,
    counted,
    date_trigger,
    expect,
    make_jobs,
    paused,
)
from benchmarks.rounds import spread

_LEAD_S = 0.5  # from the last added job to the first due time
_PROBE_S = 0.001  # between two calls of add_job, and between two turns of the coroutine

_late_s: list[float] = []


def note(due_s: float) -> None:
    """The function of each job: record how late the job runs."""
    _late_s.append(time.time() - due_s)


def lateness(kind: Any, store: Any, per_s: int, over_s: float) -> dict[str, float]:
    """The p50, the p99 and the maximum of the lateness, in ms, of jobs that run once and are due at a steady rate."""
    count = int(per_s * over_s)
    _late_s.clear()
    with paused(kind, store) as scheduler:
        build_s = count * 25e-6 + _LEAD_S
        while True:
            start = datetime.now(UTC) + timedelta(seconds=build_s)
            dues = (start + timedelta(seconds=number / per_s) for number in range(count))
            jobs = list(make_jobs(dues, date_trigger, note, due_as_argument=True))
            fill(store, jobs)
            if datetime.now(UTC) < start:
                break
            store.remove_all_jobs()  # the machine is too slow: the first jobs are already due
            build_s *= 2
        scheduler.resume()
        end_s = time.monotonic() + 60 + over_s
        while len(_late_s) < count:
            assert time.monotonic() < end_s, f"only {len(_late_s)} of {count} ran"
            time.sleep(0.02)  # the jobs do not signal the end
    assert min(_late_s) >= 0, "a job ran before it was due"
    return spread([late * 1000 for late in _late_s])


def worst_add(kind: Any, store: Any, due: int) -> float:
    """The longest call of `add_job`, in ms, while the scheduler runs `due` jobs in another thread."""
    now = datetime.now(UTC)
    later = now + timedelta(hours=1)
    worst_s = 0.0
    with paused(kind, store) as scheduler:
        fill(store, make_jobs([now - timedelta(seconds=1)] * due, date_trigger))
        expect(due)
        scheduler.resume()
        while not counted():
            start = time.perf_counter()
            scheduler.add_job(note, "date", args=[0.0], run_date=later)
            worst_s = max(worst_s, time.perf_counter() - start)
            time.sleep(_PROBE_S)  # a pause, so that the adds do not slow the burst
    return worst_s * 1000


def loop_stall(kind: Any, store: Any, due: int) -> float:
    """The longest time, in ms, for which the event loop let a ready coroutine wait while `due` coroutine jobs ran."""
    gc.collect()
    return asyncio.run(_loop_stall(kind, store, due))


async def _loop_stall(kind: Any, store: Any, due: int) -> float:
    past = datetime.now(UTC) - timedelta(seconds=1)
    scheduler = kind(timezone=UTC, job_defaults={"misfire_grace_time": None})
    scheduler.add_jobstore(store)
    over = asyncio.Event()
    scheduler.add_listener(lambda _: over.set(), EVENT_SCHEDULER_SHUTDOWN)
    scheduler.start(paused=True)
    fill(store, make_jobs([past] * due, date_trigger, count_async))
    expect(due)
    worst_s = 0.0
    await asyncio.sleep(_PROBE_S)
    scheduler.resume()
    while not counted():
        start = time.perf_counter()
        await asyncio.sleep(_PROBE_S)
        worst_s = max(worst_s, time.perf_counter() - start - _PROBE_S)
    scheduler.shutdown()
    await over.wait()
    return worst_s * 1000
