"""Remote control of workers with held tasks.

`revoke`, `inspect scheduled` and `inspect query_task` see them; `inspect wheel_stats` is new.

Celery's own commands run first and unchanged; ours take their names in the worker's registry, which is made for that.
For apps without the integration they do nothing more.

Threads: the worker's main thread; a store that is away costs at most one timeout.
"""

from __future__ import annotations

from typing import Any

from celery import states
from celery.worker import control
from celery.worker import state as worker_state
from celery.worker.control import Panel
from kombu.utils.functional import maybe_list

from wheel_sched.errors import Rejected, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.items import Found, Outcome
from wheel_sched_celery.due import iso_of
from wheel_sched_celery.held_task import bounded, decode, ref_of
from wheel_sched_celery.wheel import Wheel, wheel_of

logger = logger_of("wheel_sched.celery")

LIMIT = 1_000  # rows of held tasks in one reply; `celery wheel list` pages through all of them
ETA_PRIORITY = 6  # what Celery's strategy gives its timer entries

_stock_revoke: Any = control.revoke
_stock_scheduled: Any = control.scheduled
_stock_query_task: Any = control.query_task


def announce(version: str) -> None:
    """Let other workers know, with the heartbeat, that this one answers for held tasks."""
    worker_state.SOFTWARE_INFO["sw_wheel"] = version


def cancel_held(wheel: Wheel, task_id: str) -> int:
    """Remove every held message of a task; how many were removed. One on its way out is not stopped any more.

    Raises:
        StoreError: the store is away.
    """
    store = wheel.store
    ids = store.find(ref_of(task_id))
    return store.cancel(ids, route=bounded(task_id)).count(Outcome.DONE) if ids else 0


def revoke(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **options: Any) -> Any:
    """Revoke task by task id (or list of ids)."""
    task_ids = list(maybe_list(task_id) or [])
    reply = _stock_revoke(state, task_id, terminate, signal, **options)
    wheel = wheel_of(state.app)
    if wheel is not None and wheel.settings.url is not None:
        for each in task_ids:
            try:
                if cancel_held(wheel, str(each)):
                    _mark_revoked(state.app, str(each))
            except WheelSchedError as error:
                logger.warning("celery.not_cancelled: task %s: %s; workers drop it when it is due", each, error)
    return reply


def _mark_revoked(app: Any, task_id: str) -> None:
    """Celery 5.5 marks a revoked task when a worker receives it, which never happens to a held one."""
    try:
        if app.backend.get_state(task_id) not in states.READY_STATES:
            app.backend.mark_as_revoked(task_id, reason="revoked", store_result=True)
    except Exception as error:  # any backend may sit here; the task is removed all the same
        logger.warning("celery.not_marked: task %s is removed, but its result says nothing: %s", task_id, error)


def scheduled(state: Any, **options: Any) -> list[dict[str, Any]]:
    """List of currently scheduled ETA/countdown tasks."""
    rows: list[dict[str, Any]] = _stock_scheduled(state, **options)
    wheel = wheel_of(state.app)
    if wheel is None or wheel.settings.url is None or not _speaks_for_all(state):
        return rows
    try:
        page = wheel.store.list_items("due", limit=LIMIT)
    except WheelSchedError as error:
        logger.warning("celery.held_not_listed: %s", error)
        return rows
    return rows + [row for found in page.found if (row := _row(found)) is not None]


def query_task(state: Any, ids: Any, **options: Any) -> dict[str, Any]:
    """Query for task information by id."""
    rows: dict[str, Any] = _stock_query_task(state, ids, **options)
    wheel = wheel_of(state.app)
    if wheel is None or wheel.settings.url is None or not _speaks_for_all(state):
        return rows
    for task_id in map(str, maybe_list(ids) or []):
        if task_id in rows:
            continue
        try:
            found = wheel.store.get(wheel.store.find(ref_of(task_id)), route=bounded(task_id))
        except WheelSchedError as error:
            logger.warning("celery.held_not_listed: %s", error)
            break
        waiting = [each for each in found if each is not None and each.state != "dead"]
        for each in sorted(waiting, key=lambda each: each.score_ms)[:1]:
            if (row := _row(each)) is not None:
                rows[task_id] = ("scheduled", row["request"])
    return rows


def wheel_stats(state: Any, **_options: Any) -> dict[str, Any]:
    """Held tasks by queue, and how this worker's dispatcher stands."""
    wheel = wheel_of(state.app)
    if wheel is None or wheel.settings.url is None:
        return {"installed": wheel is not None, "store": None}
    embedded = getattr(state.consumer.controller, "wheel_dispatcher", None)
    answer: dict[str, Any] = {"installed": True, "dispatcher": None if embedded is None else embedded.info}
    try:
        counts = wheel.store.counts()
    except WheelSchedError as error:
        return {**answer, "error": str(error)}
    return {
        **answer,
        "held": {queue: n for (kind, queue), n in counts.now.items() if kind == "due"},
        "states": {kind: counts.total(kind) for kind in ("due", "fly", "held", "dead")},
        "next_due": None if counts.due_head_ms is None else iso_of(counts.due_head_ms),
    }


def _speaks_for_all(state: Any) -> bool:
    """Whether this worker lists the held tasks: the first by name of those that are alive and installed.

    Without gossip nobody knows of the others, and each lists them.
    """
    gossip = getattr(state.consumer, "gossip", None)
    if gossip is None or not gossip.enabled:
        return True
    others = [worker.hostname for worker in gossip.state.alive_workers() if getattr(worker, "sw_wheel", None)]
    return all(state.hostname <= name for name in others)


def _row(found: Found) -> dict[str, Any] | None:
    """A held task as stock shows a scheduled one."""
    try:
        task = decode(found.body)
    except Rejected:
        return None
    return {
        "eta": iso_of(task.eta_ms),
        "priority": ETA_PRIORITY,
        "request": {
            "id": task.task_id,
            "name": task.headers.get("shadow") or task.name,
            "args": task.headers.get("argsrepr", ""),
            "kwargs": task.headers.get("kwargsrepr", ""),
            "type": task.name,
            "hostname": None,
            "time_start": None,
            "acknowledged": True,
            "delivery_info": {
                "exchange": task.exchange,
                "routing_key": task.routing_key,
                "priority": task.priority,
                "redelivered": None,
            },
            "worker_pid": None,
        },
    }


Panel.register(revoke, type="control", name="revoke", variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
Panel.register(scheduled, type="inspect", name="scheduled", alias="dump_schedule")
Panel.register(query_task, type="inspect", name="query_task", variadic="ids", signature="[id1 [id2 [... [idN]]]]")
Panel.register(wheel_stats, type="inspect", name="wheel_stats")
