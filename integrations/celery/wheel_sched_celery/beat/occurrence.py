"""Makes the messages of an occurrence: what `apply_async` of the task would send, as items of the store.

Celery itself makes the message, with the routes, the serializer and the signals of the app. It gets a producer that
records the message instead of sending it, so broker and result backend may be down. As in stock beat,
the message has no ETA, unless the entry's options give one. Three headers are added: `celery_beat_task` and
`periodic_task_name`, as Celery's beat and tools around it use them, and `wheel-sched-due`, the due time of the
occurrence.

An occurrence has one id: it follows from the store's namespace, the name of the entry and the due time. The task has
this id, too, unless the entry's options name another. So a message that a broker got twice can be recognised.

Threads: any thread may call the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final
from uuid import UUID, uuid4, uuid5

from celery.beat import _evaluate_entry_args, _evaluate_entry_kwargs
from kombu import Exchange

from wheel_sched.errors import Rejected
from wheel_sched.store.core.items import Item, quoted
from wheel_sched.store.core.plans import shard_of
from wheel_sched_celery.beat.entry import BeatEntry
from wheel_sched_celery.hold.producing import record
from wheel_sched_celery.message.headers import OCCURRENCE, eta_of, iso_of
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.wheel import Wheel

_IDS: Final = UUID("6f1d9a57-3c0e-5b6e-9a53-0d6f3b8f7c11")


def occurrence_id(namespace: str, name: str, due_ms: int, route: str, shards: int) -> str:
    """The id of an occurrence and of its task.

    The id belongs to the shard of `route`, where the entry is. So one step stores the occurrence and the entry.
    """
    shard = shard_of(route, shards)
    candidates = (str(uuid5(_IDS, f"{namespace}\n{name}\n{due_ms}\n{number}")) for number in count())
    return next(candidate for candidate in candidates if shard_of(candidate, shards) == shard)


def extra_id() -> str:
    """A new id, for an occurrence that somebody asked for and that the schedule does not have."""
    return str(uuid4())


def occurrence_items(
    wheel: Wheel,
    entry: BeatEntry,
    due_ms: int,
    task_id: str,
    *,
    place: tuple[str, int] | None = None,
    arguments: tuple[Sequence[Any], Mapping[str, Any], Mapping[str, Any]] | None = None,
) -> list[Item]:
    """Make the items of an occurrence: one, unless the `apply_async` of the task's class sends none or several.

    Args:
        wheel: the integration of the app.
        entry: the entry.
        due_ms: the due time of the occurrence.
        task_id: the id of the task; `options` of the entry may name another.
        place: a route and the number of shards: the items have the shard of this route. Defaults to None: any shard.
        arguments: args, kwargs and options from the code of the app, for an entry that is only in code. Defaults to
            those of the entry.

    Raises:
        Exception: whatever the app's code or the serializer raises; nothing was stored.
    """
    args, kwargs, options = arguments or (entry.args, entry.kwargs, entry.options)
    tasks = _recorded(wheel, entry, due_ms, task_id, args, kwargs, dict(options))
    items = []
    for task in tasks:
        item = wheel.item_of(task)
        if item is None:
            raise Rejected(f"the message of task {quoted(task.name)} cannot be stored; nothing was sent")
        if place is not None and shard_of(item.route or item.id, place[1]) != shard_of(*place):
            item = replace(item, route=place[0])  # the task's id is one that the entry names
        items.append(item)
    return items


def _recorded(
    wheel: Wheel,
    entry: BeatEntry,
    due_ms: int,
    task_id: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: dict[str, Any],
) -> list[HeldTask]:
    app = wheel.app
    task = app.tasks.get(entry.task)
    if app.conf.task_always_eager:
        raise Rejected("the app has task_always_eager, so it sends no messages")
    headers = {"celery_beat_task": True, "periodic_task_name": entry.name, OCCURRENCE: iso_of(due_ms)}
    options["headers"] = {**(options.get("headers") or {}), **headers}
    options.setdefault("task_id", task_id)
    # Celery would subscribe at the result backend to a result that is not ignored
    ignores = bool(options.get("ignore_result", task is not None and task.ignore_result))
    options["ignore_result"] = True
    producer = RecordingProducer(app, due_ms)
    send = app.send_task if task is None else task.apply_async
    named = (entry.task,) if task is None else ()
    with wheel.collecting() as held:
        send(*named, _evaluate_entry_args(args), _evaluate_entry_kwargs(kwargs), producer=producer, **options)
    return [_with_result(each, ignores) for each in (*held, *producer.tasks)]


def _with_result(task: HeldTask, ignores: bool) -> HeldTask:
    if ignores or "ignore_result" not in task.headers:
        return task
    return replace(task, headers={**task.headers, "ignore_result": False})


class RecordingProducer:
    """A producer that records tasks. The event `task-sent`, which goes through the same producer, is dropped.

    Args:
        app: the app.
        due_ms: the due time of tasks without an ETA.
    """

    auto_declare = False
    serializer = None
    compression = None
    routing_key = ""
    channel = None

    def __init__(self, app: Any, due_ms: int) -> None:
        self.app = app
        self.tasks: list[HeldTask] = []
        self.exchange = Exchange("")
        self.connection = app.connection_for_write()  # not connected
        self._due_ms = due_ms

    def publish(self, body: Any, **options: Any) -> None:
        headers = options.get("headers")
        holder = headers if isinstance(headers, dict) and "task" in headers else body
        if isinstance(holder, dict) and "task" in holder and "id" in holder:
            zone: Callable[[], Any] = lambda: self.app.timezone  # noqa: E731
            due_ms = eta_of(body, headers, zone)
            self.tasks.append(record(self, body, options, self._due_ms if due_ms is None else due_ms))

    def maybe_declare(self, *_args: Any, **_options: Any) -> None:
        """Declare nothing: whoever publishes the message declares its queue."""
