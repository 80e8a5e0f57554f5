"""Records a publish: a kombu producer on a channel that notes the message instead of sending it.

kombu itself serializes and compresses, so the record is the message that a broker would have received. Nothing
connects to the broker, so a task can be held while the broker is away.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from kombu import Producer, Queue

from wheel_sched_celery.message.due import instant_ms
from wheel_sched_celery.message.entities import values_of
from wheel_sched_celery.message.held_task import HeldTask


class RecordingChannel:
    """The two methods of a channel that a publish calls."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        self.message.update(
            body=body,
            priority=priority,
            content_type=content_type,
            content_encoding=content_encoding,
            headers=dict(headers or {}),
            properties=dict(properties or {}),
        )

    def basic_publish(self, _message: None, exchange: str, routing_key: str, **_options: Any) -> None:
        self.message.update(exchange=exchange, routing_key=routing_key)


def record(producer: Any, body: Any, options: dict[str, Any], eta_ms: int) -> HeldTask:
    """The held task of `producer.publish(body, **options)`.

    Raises:
        Exception: whatever the serializer raises; a publish would raise the same.
    """
    options = dict(options)
    declare = options.pop("declare", None) or ()
    for name in ("retry", "retry_policy", "timeout", "confirm_timeout"):
        options.pop(name, None)
    recorder, channel = _recorder_of(producer)
    recorder.publish(body, **options)
    message, channel.message = channel.message, {}
    properties = message["properties"]
    if isinstance(properties.get("reply_to"), Queue):
        properties["reply_to"] = properties["reply_to"].name
    identity = message["headers"] if "task" in message["headers"] else body
    ttl = properties.get("expiration")
    return HeldTask(
        task_id=identity["id"],
        name=identity["task"],
        retries=identity.get("retries") or 0,
        eta_ms=eta_ms,
        queue=next((entity.name for entity in declare if isinstance(entity, Queue)), ""),
        declare=values_of(declare),
        ttl_until_ms=None if ttl is None else time.time_ns() // 1_000_000 + int(ttl),
        **message,
    )


class _Recorders(threading.local):
    """One recorder for each producer of this thread, because making one takes as long as recording."""

    def __init__(self) -> None:
        self.known: weakref.WeakKeyDictionary[Any, tuple[list[Any], Any, RecordingChannel]]
        self.known = weakref.WeakKeyDictionary()


_recorders = _Recorders()


def _recorder_of(producer: Any) -> tuple[Any, RecordingChannel]:
    """A producer with the defaults of `producer`, and its recording channel."""
    defaults = [producer.exchange, producer.routing_key, producer.serializer, producer.compression]
    known = _recorders.known.get(producer)
    if known is None or known[0] != defaults:  # compared by value: a pooled producer binds its exchange anew each time
        channel = RecordingChannel()
        exchange, routing_key, serializer, compression = defaults
        recorder: Any = Producer(
            channel,
            exchange=exchange,
            routing_key=routing_key,
            serializer=serializer,
            compression=compression,
            auto_declare=False,
        )
        known = _recorders.known[producer] = (defaults, recorder, channel)
    return known[1], known[2]


def eta_of(body: Any, headers: Any, timezone: Callable[[], Any]) -> int | None:
    """The due time of a task's message; None without a readable ETA. In protocol 1 the ETA lies in the body."""
    holder = headers if isinstance(headers, dict) and "task" in headers else body
    if not isinstance(holder, dict) or not holder.get("eta") or not holder.get("id"):
        return None
    return instant_ms(holder["eta"], timezone())
