"""Remote control of workers with held tasks.

`revoke`, `terminate`, `revoke_by_stamped_headers`, `inspect scheduled` and `inspect query_task` include held tasks.
`inspect wheel_stats` is a new command.

The other commands replace Celery's commands of the same names. Each first runs Celery's command unchanged. For an app
without the integration they do nothing more.

Threads: the worker's main thread runs the commands. It waits at most a second for the store (see `store_thread`),
`inspect query_task` for each id. Another thread revokes held tasks, because results, chords and the store may take
long. While the store is away it revokes none, and workers drop these tasks when they are due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery import signals
from celery.worker import control
from celery.worker import state as worker_state
from celery.worker.control import Panel
from kombu.utils.functional import maybe_list

from wheel_sched.errors import Rejected, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Found
from wheel_sched_celery.beat.apart import is_task, tasks_alone
from wheel_sched_celery.management import HeldTasks, WaitingTask
from wheel_sched_celery.message.headers import iso_of
from wheel_sched_celery.message.held_task import REVOKED, bounded, ref_of
from wheel_sched_celery.message.stored_forms import decode
from wheel_sched_celery.remote_control.revoking import Announcer
from wheel_sched_celery.remote_control.stock_request import UnreadableTask, request_of
from wheel_sched_celery.remote_control.workers import reported
from wheel_sched_celery.store_thread import StoreThread
from wheel_sched_celery.wheel import wheel_of, wheel_with_store

logger = logger_of("wheel_sched.celery")

LIMIT = 1_000  # rows of held tasks in one reply; `celery wheel list` pages through all of them
LIMIT_BYTES = 8 * 1024 * 1024  # of the messages in one reply
ETA_PRIORITY = 6  # Celery's strategy gives this priority to its timer entries

STOP_S = 5.0  # how long a stopping worker takes to finish the revokes that it has received

# The worker's loop must not wait for the store or the result backend. One thread does all revokes, because a result
# backend belongs to the thread that made it.
revoking_thread = StoreThread("wheel-sched-celery-control")

_stock_revoke: Any = control.revoke
_stock_revoke_by_stamped_headers: Any = control.revoke_by_stamped_headers
_stock_scheduled: Any = control.scheduled
_stock_query_task: Any = control.query_task


def announce_in_heartbeats() -> None:
    """Add to each heartbeat of this worker that it can list held tasks."""
    worker_state.SOFTWARE_INFO["sw_wheel"] = "1"


def revoke(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **options: Any) -> Any:
    """Revoke task by task id (or list of ids)."""
    task_ids = list(maybe_list(task_id) or [])
    reply = _stock_revoke(state, task_id, terminate, signal, **options)
    _revoke_held(state, lambda tasks: (waiting for each in task_ids for waiting in tasks.get(str(each))))
    return reply


def terminate(state: Any, signal: Any, task_id: Any, **options: Any) -> Any:
    """Terminate task by task id (or list of ids)."""
    return revoke(state, task_id, terminate=True, signal=signal, **options)


def revoke_by_stamped_headers(
    state: Any, headers: Any, terminate: bool = False, signal: Any = None, **options: Any
) -> Any:
    """Revoke task by header (or list of headers)."""
    reply = _stock_revoke_by_stamped_headers(state, headers, terminate, signal, **options)
    if isinstance(headers, list):
        headers = dict(each.split("=")[:2] for each in headers)
    stamps = {str(name): list(maybe_list(values) or []) for name, values in headers.items()}
    _revoke_held(state, lambda tasks: tasks.stamped(stamps))
    return reply


def _revoke_held(state: Any, chosen: Callable[[HeldTasks], Iterable[WaitingTask]]) -> None:
    """Revoke held tasks, except tasks in flight. All workers receive the command, and only one announces each task."""
    wheel = wheel_with_store(state.app)
    if wheel is None:
        return
    tasks, eventer = HeldTasks(wheel), state.consumer.event_dispatcher
    announcer = Announcer(state.app, state.hostname, bool(eventer and eventer.enabled))

    def revoke_all(_store: DelayStore) -> None:
        meant = [waiting for waiting in chosen(tasks) if waiting.found.state != "dead" and not waiting.revoked]
        with announcer:
            tasks.revoke(meant, announcer)

    def revoke_now() -> None:
        try:
            wheel.call(revoke_all)
        except WheelSchedError as error:
            logger.warning("celery.not_cancelled: %s; workers drop the tasks when they are due", error)
        except Exception:
            logger.exception("celery.not_cancelled: workers drop the tasks when they are due")

    revoking_thread.submit(revoke_now)


def _finish(**_: Any) -> None:
    dropped = revoking_thread.finish(STOP_S)
    if dropped:
        logger.warning(
            "celery.not_cancelled: %d revokes, because this worker stops; others drop the tasks when due",
            dropped,
        )


signals.worker_shutdown.connect(_finish, weak=False)


def scheduled(state: Any, **options: Any) -> list[dict[str, Any]]:
    """List of currently scheduled ETA/countdown tasks."""
    rows: list[dict[str, Any]] = _stock_scheduled(state, **options)
    wheel = wheel_with_store(state.app)
    if wheel is None or not _lists_held_tasks(state):
        return rows
    try:
        page = wheel.call_in_thread(lambda store: store.list_items("due", limit=LIMIT, matches=is_task))
    except WheelSchedError as error:
        logger.warning("celery.held_not_listed: %s", error)
        return rows
    left_bytes = LIMIT_BYTES  # arguments are shown in full, as Celery shows its own
    for found in page.found:
        left_bytes -= len(found.body)
        if left_bytes < 0:
            logger.warning("celery.held_not_listed: more than %d bytes; see `celery wheel list`", LIMIT_BYTES)
            break
        if (row := _row(found, state)) is not None:
            rows.append(row)
    return rows


def query_task(state: Any, ids: Any, **options: Any) -> dict[str, Any]:
    """Query for task information by id."""
    rows: dict[str, Any] = _stock_query_task(state, ids, **options)
    wheel = wheel_with_store(state.app)
    if wheel is None or not _lists_held_tasks(state):
        return rows
    for task_id in map(str, maybe_list(ids) or []):
        if task_id in rows:
            continue
        try:
            found = wheel.call_in_thread(partial(_found, task_id))
        except WheelSchedError as error:
            logger.warning("celery.held_not_listed: %s", error)
            break
        waiting = [each for each in found if each is not None and each.state != "dead" and each.reason != REVOKED]
        for each in sorted(waiting, key=lambda each: each.score_ms)[:1]:
            if (row := _row(each, state)) is not None:
                rows[task_id] = ("scheduled", row["request"])
    return rows


def _found(task_id: str, store: DelayStore) -> list[Found | None]:
    return store.get(store.find(ref_of(task_id)), route=bounded(task_id))


def wheel_stats(state: Any, **_options: Any) -> dict[str, Any]:
    """Held tasks by queue, and the state of this worker's dispatcher."""
    wheel = wheel_with_store(state.app)
    if wheel is None:
        return {"installed": wheel_of(state.app) is not None, "store": None}
    embedded = getattr(state.consumer.controller, "wheel_dispatcher", None)
    answer: dict[str, Any] = {
        "installed": True,
        "settings": reported(wheel.settings),
        "dispatcher": None if embedded is None else embedded.info,
    }
    try:
        counts = tasks_alone(wheel.call_in_thread(DelayStore.counts))
    except WheelSchedError as error:
        return {**answer, "error": str(error)}
    return {
        **answer,
        "held": {queue: n for (kind, queue), n in counts.now.items() if kind == "due"},
        "states": {kind: counts.total(kind) for kind in ("due", "leased", "held", "dead")},
        "next_due": None if counts.due_head_ms is None else iso_of(counts.due_head_ms),
    }


def _lists_held_tasks(state: Any) -> bool:
    """Whether this worker lists the held tasks. Of the live workers that can list them, only the first by name does.

    Without gossip a worker does not know the other workers. Then each worker lists the held tasks.
    """
    gossip = getattr(state.consumer, "gossip", None)
    if gossip is None or not gossip.enabled:
        return True
    others = [worker.hostname for worker in gossip.state.alive_workers() if getattr(worker, "sw_wheel", None)]
    return all(state.hostname <= name for name in others)


def _row(found: Found, state: Any) -> dict[str, Any] | None:
    """A held task in the form in which Celery lists a scheduled task of this worker."""
    try:
        request = request_of(state.app, decode(found.body), state.hostname)
    except (Rejected, UnreadableTask) as error:
        logger.warning("celery.held_not_listed: %s", error)
        return None
    return {"eta": request.eta.isoformat(), "priority": ETA_PRIORITY, "request": request.info()}


Panel.register(revoke, type="control", name="revoke", variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
Panel.register(
    terminate,
    type="control",
    name="terminate",
    variadic="task_id",
    args=[("signal", str)],
    signature="<signal> [id1 [id2 [... [idN]]]]",
)
Panel.register(
    revoke_by_stamped_headers,
    type="control",
    name="revoke_by_stamped_headers",
    variadic="headers",
    signature="[key1=value1 [key2=value2 [... [keyN=valueN]]]]",
)
Panel.register(scheduled, type="inspect", name="scheduled", alias="dump_schedule")
Panel.register(query_task, type="inspect", name="query_task", variadic="ids", signature="[id1 [id2 [... [idN]]]]")
Panel.register(wheel_stats, type="inspect", name="wheel_stats")
