"""Makes many jobs at once, because a scheduler takes 20 to 40 µs to make a job. The jobs only count their calls."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from apscheduler.job import Job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

_GIVE_UP_S = 120.0
ALLOWED = ["benchmarks.apscheduler.making"]

_counter = itertools.count(1)
_target = 0
_reached = threading.Event()


def count() -> None:
    """The function of the jobs: count the call. The last expected call ends `wait_counted`."""
    if next(_counter) >= _target:
        _reached.set()


async def count_async() -> None:
    """Do the same as `count`, as a coroutine."""
    count()


def expect(calls: int) -> None:
    """Set the count back to 0. `wait_counted` then waits until `calls` calls were made."""
    global _counter, _target
    _counter, _target = itertools.count(1), calls
    _reached.clear()


def wait_counted() -> None:
    """Wait until the last expected call was made. Raises `AssertionError` after two minutes."""
    assert _reached.wait(_GIVE_UP_S), "the jobs did not all run"


def counted() -> bool:
    """Whether the last expected call was made."""
    return _reached.is_set()


def date_trigger(due: datetime) -> DateTrigger:
    """A trigger that is due once, at `due`."""
    return DateTrigger(due, UTC)


def interval_trigger(due: datetime) -> IntervalTrigger:
    """A trigger that is due at `due` and then every hour."""
    return IntervalTrigger(hours=1, start_date=due, timezone=UTC)


def make_jobs(
    dues: Iterable[datetime], trigger: Any, func: Any = count, *, due_as_argument: bool = False
) -> Iterator[Job]:
    """Yield a job for each due time. `trigger` is one trigger for all jobs, or makes a trigger from each due time.

    `due_as_argument`: `func` is called with the due time in epoch seconds, otherwise without arguments.
    """
    scheduler = BackgroundScheduler(timezone=UTC)
    shared = None if callable(trigger) else trigger
    state: dict[str, Any] = {
        "func": func,
        "executor": "default",
        "args": (0.0,) if due_as_argument else (),
        "kwargs": {},
        "misfire_grace_time": None,
        "coalesce": True,
        "max_instances": 1,
    }
    template: Any = None
    for number, due in enumerate(dues):
        own = shared or trigger(due)
        if template is None:
            template = Job(scheduler, id="template", trigger=own, next_run_time=due, **state)
            slots = [slot for slot in Job.__slots__ if slot not in ("__weakref__", "id", "trigger", "next_run_time")]
            values = [(slot, getattr(template, slot)) for slot in slots]
        job: Any = object.__new__(Job)
        for slot, value in values:
            setattr(job, slot, value)
        job.id, job.trigger, job.next_run_time = f"{number:08x}", own, due
        job._jobstore_alias = "default"
        if due_as_argument:
            job.args = (due.timestamp(),)
        yield job


@contextmanager
def paused(kind: Any, store: Any, **options: Any) -> Iterator[Any]:
    """Yield a started and paused scheduler over `store`. It drops no late job, and is shut down when the block ends."""
    gc.collect()
    scheduler = kind(timezone=UTC, job_defaults={"misfire_grace_time": None}, **options)
    scheduler.add_jobstore(store)
    scheduler.start(paused=True)
    try:
        yield scheduler
    finally:
        scheduler.shutdown()
