"""Measures with a million jobs in memory how long one update takes, and how much memory the store itself needs.

`python -m benchmarks.apscheduler.million ours|stock COUNT` prints one JSON object.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from datetime import UTC, datetime, timedelta
from statistics import median

from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.util import datetime_to_utc_timestamp
from wheel_sched_apscheduler import WheelJobStore

from benchmarks.apscheduler.making import date_trigger, make_jobs
from benchmarks.resident import resident_bytes

_UPDATES = 1_000
_OVER = timedelta(hours=1)


def measure(ours: bool, count: int) -> dict[str, float]:
    """Measure the time of one update in µs, and the memory of the store in bytes per job."""
    gc.disable()  # the collector would search a million jobs, and the update would seem slower
    start = datetime.now(UTC) + _OVER
    jobs = list(make_jobs((start + _OVER * (number / count) for number in range(count)), date_trigger(start)))
    before = resident_bytes()
    store = WheelJobStore() if ours else MemoryJobStore()
    if ours:
        for job in jobs:
            store.add_job(job)
    else:  # the same state as after `add_job` of each job, which takes minutes
        store._jobs = [(job, datetime_to_utc_timestamp(job.next_run_time)) for job in jobs]
        store._jobs_index = {pair[0].id: pair for pair in store._jobs}
    grown = resident_bytes() - before
    chance = random.Random(7)
    took_us = []
    for job in chance.sample(jobs, _UPDATES):
        job.next_run_time = start + _OVER * chance.random()
        begin = time.perf_counter_ns()
        store.update_job(job)
        took_us.append((time.perf_counter_ns() - begin) / 1000)
    return {"update_us": median(took_us), "bytes_per_job": grown / count}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1] == "ours", int(sys.argv[2]))))
