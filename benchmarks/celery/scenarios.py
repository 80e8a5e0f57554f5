"""The scenarios, which run in the same way with stock Celery and with ours. Each returns its figures."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from benchmarks.celery.site import Kind, Run, site
from benchmarks.rounds import percentile

# Stock looks every 100 s for messages that nobody acknowledged; with these settings it looks as often as it can.
EAGER_RESTORE = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
_DOUBLED_VISIBILITY_S = 5
_OURS_WAIT_S = 60.0  # how long to wait for tasks of ours; a task that has not run by then counts as lost
_CONCURRENCY = {"solo": 1, "threads": 4, "prefork": 2}
_SETTLE_S = 0.5  # a worker that has just become ready still warms up


@dataclass(frozen=True, slots=True)
class TaskLateness:
    """The lateness in one run: percentiles in ms, how many tasks ran, how many were early, and tasks per second."""

    p50: float
    p99: float
    ran: int
    early: int
    tasks_per_s: float


def memory(kind: Kind, tasks: int) -> dict[str, float]:
    """How much a worker's memory and prefetch count grow when it gets `tasks` tasks that are due in ten minutes."""
    with site(kind) as place:
        worker = place.start("threads", 4)
        time.sleep(2 * _SETTLE_S)  # until the worker has started completely
        before_mb, before = place.rss_mb(worker), place.prefetch()
        due_s = time.time() + 600
        place.send([due_s] * tasks)
        place.wait(lambda: place.queued() == 0, "the queue to be taken")
        time.sleep(_SETTLE_S)  # the worker still unpacks the last messages
        return {"rss_mb": round(place.rss_mb(worker) - before_mb, 1), "prefetch": place.prefetch() - before}


def lateness(kind: Kind, pool: str, tasks: int, over_s: float, lead_s: float, give_up_s: float) -> TaskLateness:
    """How late one worker runs `tasks` tasks whose due times are spread over `over_s` seconds.

    A task of stock that has not run `give_up_s` seconds after the last due time counts as missing.
    """
    while True:
        with site(kind, workers=1, pool=pool, concurrency=_CONCURRENCY[pool]) as place:
            time.sleep(_SETTLE_S)  # until the worker has started completely
            start_s = time.time() + lead_s
            place.send([start_s + number * over_s / tasks for number in range(tasks)])
            if time.time() < start_s:
                time.sleep(max(0.0, start_s + over_s - time.time()))  # the tasks run in this time
                place.seen(lambda: place.ran() >= tasks, give_up_s if kind == "stock" else max(give_up_s, _OURS_WAIT_S))
                return _lateness(place.runs(), max(time.time() - start_s, 0.001), start_s)
        lead_s *= 2  # some tasks were due before they were sent: this machine is slower than expected


def _lateness(runs: list[Run], span_s: float, start_s: float) -> TaskLateness:
    late_ms = [run.late_s * 1000 for run in runs]
    if not runs:
        return TaskLateness(float("inf"), float("inf"), 0, 0, 0.0)
    return TaskLateness(
        round(percentile(late_ms, 50), 2),
        round(percentile(late_ms, 99), 2),
        len({run.number for run in runs}),
        sum(run.late_s < 0 for run in runs),
        round(len(runs) / span_s, 1),
    )


def kill9(kind: Kind, tasks: int, due_in_s: float, limit_s: float, visibility_s: int) -> dict[str, Any]:
    """Kill one of two workers while all tasks wait.

    Returns the 99th percentile of lateness in seconds, how many runs were repeated or early, and how many tasks never
    ran.
    """
    with site(kind, {**EAGER_RESTORE, "visibility_timeout": visibility_s}, workers=2) as place:
        due_s = time.time() + due_in_s
        place.send([due_s] * tasks)
        place.wait(lambda: place.queued() == 0, "the queue to be taken")
        place.kill(place.workers[0])
        place.seen(lambda: len({run.number for run in place.runs()}) == tasks, due_in_s + limit_s)
        return {"late_s": round(_late_p99_s(place.runs(), tasks, limit_s), 2), **_counted(place.runs(), tasks)}


def doubled(kind: Kind, tasks: int, due_in_s: float) -> dict[str, Any]:
    """Let two workers wait for tasks whose ETA is several visibility timeouts away.

    Returns how many runs were repeated or early, and how many tasks never ran.
    """
    with site(kind, {**EAGER_RESTORE, "visibility_timeout": _DOUBLED_VISIBILITY_S}, workers=2) as place:
        due_s = time.time() + due_in_s
        place.send([due_s] * tasks)
        place.seen(lambda: len({run.number for run in place.runs()}) == tasks, due_in_s + 60)
        time.sleep(3 * EAGER_RESTORE["unacked_restore_interval"])  # until copies that are delivered again have run
        return _counted(place.runs(), tasks)


def outage(kind: Kind, tasks: int, due_in_s: float, away_s: float, limit_s: float) -> dict[str, Any]:
    """Stop the server for `away_s` seconds before tasks are due, and start it again with its data.

    Returns how many runs were repeated or early, and how many tasks never ran.
    """
    with site(kind, workers=1) as place:
        due_s = time.time() + due_in_s
        place.send([due_s] * tasks)
        place.wait(lambda: place.queued() == 0, "the queue to be taken")
        time.sleep(1.5)  # the server syncs its append-only file each second; only synced data must survive
        place.server.stop()
        time.sleep(away_s)  # the outage
        place.server.restart()
        place.seen(lambda: place.ran() >= tasks, max(0.0, due_s - time.time()) + limit_s)
        return _counted(place.runs(), tasks)


def enqueue(kind: str, tasks: int, sites: dict[Kind, Any]) -> float:
    """How many tasks a second `apply_async(countdown=600)` sends; for the kind "many", how many `apply_many` sends."""
    from wheel_sched_celery import apply_many

    note = sites["stock" if kind == "stock" else "ours"].note
    started = time.perf_counter()
    if kind == "many":
        apply_many(note, ((number, 0.0) for number in range(tasks)), countdown=600)
    else:
        for number in range(tasks):
            note.apply_async((number, 0.0), countdown=600)
    return tasks / (time.perf_counter() - started)


def _late_p99_s(runs: list[Run], tasks: int, limit_s: float) -> float:
    """The 99th percentile of lateness over all tasks, in seconds. The first run of a task counts.

    A task that never ran counts as late by `limit_s`.
    """
    first: dict[int, float] = {}
    for run in runs:
        first[run.number] = min(run.late_s, first.get(run.number, run.late_s))
    return percentile([first.get(number, limit_s) for number in range(tasks)], 99)


def _counted(runs: list[Run], tasks: int) -> dict[str, int]:
    counts = Counter(run.number for run in runs)
    return {
        "duplicates": sum(count - 1 for count in counts.values()),
        "lost": tasks - len(counts),
        "early": sum(run.late_s < 0 for run in runs),
    }
