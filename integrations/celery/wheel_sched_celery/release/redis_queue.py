"""Push forms for kombu's Redis transport: the key of a queue's list and the element, as kombu would make them.

kombu's own channel class makes both, on an object that never connects. So the push form follows its settings (priority
steps, separator, key prefix) and the changes of its releases. There is no push form when a channel class puts messages
differently, or when each message renews the lifetime of its queue; a publisher sends such tasks.

Pure once made; any thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from kombu.utils.json import JSONEncoder

from wheel_sched.store.push.push_form import encode_push
from wheel_sched_celery.message.dispatch_mark import marked
from wheel_sched_celery.message.due import instant_ms
from wheel_sched_celery.message.held_task import HeldTask

_encode: Final[Callable[[Any], str]] = JSONEncoder().encode  # kombu's `dumps` would make a new encoder for each text


class RedisQueue:
    """Makes push forms for one broker.

    Args:
        connection: to the broker; only its class and options are used, and it does not connect.
    """

    def __init__(self, connection: Any) -> None:
        channel_class = connection.get_transport_cls().Channel
        self._channel: Any = channel_class.__new__(channel_class)
        options = connection.transport_options
        for name in channel_class.from_transport_options:
            if name in options:
                setattr(self._channel, name, options[name])

    @staticmethod
    def serves(connection: Any) -> bool:
        """Whether the broker's messages are elements of plain Redis lists."""
        channel_class = getattr(connection.get_transport_cls(), "Channel", None)
        # an app with a class of that transport has imported it; with another broker the import may fail
        transport: Any = sys.modules.get("kombu.transport.redis")
        stock: Any = getattr(transport, "Channel", None)
        return (
            stock is not None
            and isinstance(channel_class, type)
            and issubclass(channel_class, stock)
            and all(
                getattr(channel_class, name) is getattr(stock, name)
                for name in ("_put", "_q_for_pri", "prepare_message", "basic_publish", "_inplace_augment_message")
            )
        )

    def push_form(self, task: HeldTask, now_ms: int) -> bytes | None:
        """The element in push form for publishing at `now_ms`; None when only a publisher can send this task."""
        if task.exchange or not task.routing_key or "task" not in task.headers:
            return None
        if any(entity["kind"] == "queue" and entity["expires"] for entity in task.declare):
            return None
        if instant_ms(task.headers.get("eta"), None) != task.eta_ms or task.headers.get("id") != task.task_id:
            return None
        channel = self._channel
        message = channel.prepare_message(
            task.body,
            task.priority,
            task.content_type,
            task.content_encoding,
            marked(task.headers, task.task_id, task.retries),
            task.properties_at(now_ms),
        )
        channel._inplace_augment_message(message, "", task.routing_key)
        key = channel._q_for_pri(task.routing_key, channel._get_message_priority(message, reverse=False))
        return encode_push("L", f"{channel.global_keyprefix}{key}", [_encode(message).encode("utf-8")])
