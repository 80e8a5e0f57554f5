"""Makes Celery's own `Request` from a held task, as a worker makes it from a received message.

With this request, `inspect` shows a held task, and a revoke announces it, exactly as the installed release of Celery
does.

The functions are pure, so any thread may call them.
"""

from __future__ import annotations

import weakref
from typing import Any

from celery.utils.imports import symbol_by_name
from celery.worker.strategy import hybrid_to_proto2
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.transport import virtual

from wheel_sched_celery.message.held_task import HeldTask

_priorities: weakref.WeakKeyDictionary[Any, int | None] = weakref.WeakKeyDictionary()


class UnreadableTask(Exception):
    """The message is not a task that this app accepts; a worker would reject it."""


def request_of(app: Any, held: HeldTask, hostname: str | None = None) -> Any:
    """Make the request that a worker has right after the delivery of the task's message.

    Args:
        app: the Celery app; a task that it does not know gets Celery's defaults.
        held: the task.
        hostname: the name of the worker that makes the request. Defaults to this machine's name.

    Raises:
        UnreadableTask: the app does not accept the type of the body, or the body is not a task.
    """
    message = Message(
        held.body,
        content_type=held.content_type,
        content_encoding=held.content_encoding,
        delivery_info={"exchange": held.exchange, "routing_key": held.routing_key},
        properties={**held.properties, "priority": _priority(app, held)},
        headers=dict(held.headers),
        accept=prepare_accept_content(app.conf.accept_content),
    )
    task = _task_of(app, held.name)
    try:
        if message.errors:
            message._reraise_error()
        payload = message.payload
        read: dict[str, Any] = {}
        if "args" in payload:  # protocol 1
            body, headers, decoded, utc = hybrid_to_proto2(message, payload)
            read = {"body": body, "headers": headers, "decoded": decoded, "utc": utc}
        request_class = symbol_by_name(task.Request)
        return request_class(message, app=app, task=task, hostname=hostname, **read)
    except Exception as error:  # decoders and request classes of the app may raise anything
        raise UnreadableTask(f"task {held.task_id}: {error!r}") from error


def _priority(app: Any, held: HeldTask) -> int | None:
    """The priority that the message has when a worker gets it: kombu's virtual transports always set one."""
    if held.priority is not None:
        return held.priority
    if app not in _priorities:
        channel: Any = getattr(app.connection_for_write().get_transport_cls(), "Channel", None)
        ours = isinstance(channel, type) and issubclass(channel, virtual.Channel)
        _priorities[app] = channel.default_priority if ours else None
    return _priorities[app]


def _task_of(app: Any, name: str) -> Any:
    known = app.tasks.get(name)
    if known is None:
        known = app.Task()
        known.name = name
    return known
