"""Bursts: how long a scheduler takes per job, in µs, when all jobs are due.

The time counts from the scheduler's `resume` to the last call of a job's function.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.redis import RedisJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from wheel_sched_apscheduler import RedisWheelJobStore, WheelBackgroundScheduler, WheelJobStore

from benchmarks.apscheduler.making import (
    ALLOWED,
    date_trigger,
    expect,
    interval_trigger,
    make_jobs,
    paused,
    wait_counted,
)

if TYPE_CHECKING:
    from benchmarks.server import BenchServer

TRIGGERS = {"date": date_trigger, "interval": interval_trigger}


def drain(kind: Any, store: Any, trigger: str, count: int) -> float:
    """Measure one burst of `count` jobs with a scheduler of class `kind`. Returns µs per job."""
    due = datetime.now(UTC) - timedelta(seconds=1)
    with paused(kind, store) as scheduler:
        fill(store, make_jobs([due] * count, TRIGGERS[trigger]))
        expect(count)
        start = time.perf_counter()
        scheduler.resume()
        wait_counted()
        return (time.perf_counter() - start) / count * 1e6


def fill(store: Any, jobs: Any) -> None:
    """Store the jobs, in bulk if the store can."""
    if hasattr(store, "add_jobs"):
        assert not list(store.add_jobs(list(jobs)) or ())
        return
    for job in jobs:
        store.add_job(job)


def memory_drains(trigger: str, count: int) -> dict[str, Callable[[], float]]:
    """Functions that measure a burst in memory, by name: with the stock scheduler and with ours."""
    return {
        f"stock, {trigger}": lambda: drain(BackgroundScheduler, MemoryJobStore(), trigger, count),
        f"ours, {trigger}": lambda: drain(WheelBackgroundScheduler, WheelJobStore(), trigger, count),
    }


def redis_drains(server: BenchServer, count: int) -> dict[str, Callable[[], float]]:
    """Functions that measure a burst on Redis, by name.

    They measure the stock store, our store in a stock scheduler, and our store in our scheduler.
    """
    return {
        "stock redis": lambda: drain(BackgroundScheduler, stock_redis(server), "date", count),
        "our redis store": lambda: drain(BackgroundScheduler, our_redis(server), "date", count),
        "our redis scheduler": lambda: drain(WheelBackgroundScheduler, our_redis(server), "date", count),
    }


def stock_redis(server: BenchServer) -> RedisJobStore:
    """Empty the server, and make APScheduler's own store in it, over the kind of connection that ours uses."""
    server.client.flushall()
    options = server.client.connection_pool.connection_kwargs
    return RedisJobStore(unix_socket_path=options["path"])


def our_redis(server: BenchServer) -> RedisWheelJobStore:
    """Empty the server, and make our store in it."""
    server.client.flushall()
    return RedisWheelJobStore(server.url, allow=ALLOWED)
