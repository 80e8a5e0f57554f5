"""A million jobs in memory: what one update takes, and what the store itself weighs. In a process of its own, so that
what was freed before is not mistaken for free."""

from __future__ import annotations

import gc
import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.util import datetime_to_utc_timestamp
from wheel_sched_apscheduler import WheelJobStore

from benchmarks.apscheduler.making import date_trigger, make_jobs

_UPDATES = 1_000
_OVER = timedelta(hours=1)


def measure(ours: bool, count: int) -> dict[str, float]:
    """µs of an update and bytes of the store a job, measured in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, ours, count).result()


def _measure(ours: bool, count: int) -> dict[str, float]:
    gc.disable()  # a million jobs are no garbage, and looking for it is not what is measured
    start = datetime.now(UTC) + _OVER
    jobs = list(make_jobs((start + _OVER * (number / count) for number in range(count)), date_trigger(start)))
    before = _resident()
    store = WheelJobStore() if ours else MemoryJobStore()
    if ours:
        for job in jobs:
            store.add_job(job)
    else:  # what `add_job` would end with; inserting one by one takes minutes
        store._jobs = [(job, datetime_to_utc_timestamp(job.next_run_time)) for job in jobs]
        store._jobs_index = {pair[0].id: pair for pair in store._jobs}
    grown = _resident() - before
    chance = random.Random(7)
    took_us = []
    for job in chance.sample(jobs, _UPDATES):
        job.next_run_time = start + _OVER * chance.random()
        begin = time.perf_counter_ns()
        store.update_job(job)
        took_us.append((time.perf_counter_ns() - begin) / 1000)
    return {"update_us": median(took_us), "bytes_per_job": grown / count}


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0


def both(count: int) -> dict[str, Any]:
    """Stock and ours."""
    return {"stock": measure(False, count), "ours": measure(True, count)}
