"""Announces that a held task is revoked, as a worker does when a revoked task is due.

When a revoked task is due, a worker of stock Celery drops it. It marks the result, fails the task's chord, and sends
the event `task-revoked` and the signal `task_revoked`. A revoked held task never reaches a worker. So the process that
removes the task from the store does all of this, at once.

Threads: only one thread at a time may use an `Announcer`.
"""

from __future__ import annotations

from typing import Any

from celery import signals

from wheel_sched.escaping import logger_of
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.release.broker_connection import short_connection
from wheel_sched_celery.remote_control.stock_request import UnreadableTask, request_of

logger = logger_of("wheel_sched.celery")

REASON = "revoked"


class Announcer:
    """Announces revoked tasks of one app.

    Args:
        app: the Celery app.
        hostname: the name of the worker that announces. Defaults to none.
        events: whether to send events, over a connection that the announcer opens. Defaults to True.
    """

    def __init__(self, app: Any, hostname: str | None = None, events: bool = True) -> None:
        self._app = app
        self._hostname = hostname
        self._events = events
        self._eventer: Any = None
        self._connection: Any = None

    def __enter__(self) -> Announcer:
        return self

    def __exit__(self, *_: object) -> None:
        self._eventer = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()

    def announce(self, held: HeldTask) -> None:
        """Mark the result of the task as revoked, then send the event and the signal.

        If the message cannot be read here, only the result is marked. An event that cannot be sent is only logged.

        Raises:
            Exception: whatever the result backend raises; nothing was sent.
        """
        try:
            request = request_of(self._app, held, self._hostname)
        except UnreadableTask as error:
            logger.warning("celery.unreadable: %s: its result is revoked, but its chord does not fail", error)
            self._app.backend.mark_as_revoked(held.task_id, REASON, store_result=True)
            return
        context = request._context  # Celery gives it to result backends and signals
        request.task.backend.mark_as_revoked(request.id, REASON, request=context, store_result=request.store_errors)
        event_fields = {"terminated": False, "signum": None, "expired": False}
        self._send_event(request, event_fields)
        signals.task_revoked.send(sender=request.task, request=context, **event_fields)

    def _send_event(self, request: Any, event_fields: dict[str, Any]) -> None:
        if not self._events:
            return
        try:
            self._eventer = self._eventer or self._own_eventer()
            request.eventer = self._eventer
            request.send_event("task-revoked", **event_fields)
        except Exception as error:  # every client library raises its own errors
            logger.warning("celery.event_not_sent: task-revoked of task %s: %s", request.id, error)
            self._events = False  # do not wait for an absent broker a second time

    def _own_eventer(self) -> Any:
        connection = self._connection = short_connection(self._app)
        connection.connect()
        return self._app.events.Dispatcher(connection, self._hostname, enabled=True, buffer_while_offline=False)
