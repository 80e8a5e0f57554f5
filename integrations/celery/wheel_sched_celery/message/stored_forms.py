"""The two forms in which the store keeps a held task.

- *Push form* (`wheel_sched.store.push.push_form`): exactly the element that the Redis server pushes to the queue's
  list, for brokers that share the store's database.
- *Neutral form*: `C1` and a JSON object with the arguments of the publish, for every other broker. kombu's own JSON
  (dates, decimals, bytes) writes and reads it. Reading executes no stored data.

Invariant: both forms lead to the same message. It is byte for byte the message of stock Celery, with two exceptions:
its TTL in the broker is shorter by the time in the store, and it has one more header, the mark (see `headers`). A
`HeldTask` does not contain that header. A debounced task also has another ETA (see `once_per_key`).

The functions are pure, so any thread may call them.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from kombu import Exchange, Queue
from kombu.utils.json import JSONEncoder, dumps, loads

from wheel_sched.errors import Rejected
from wheel_sched.store.push.push_form import decode_push, encode_push
from wheel_sched_celery.message.headers import MARK, due_of, marked
from wheel_sched_celery.message.held_task import HeldTask

NEUTRAL = b"C1"
_encode: Final[Callable[[Any], str]] = JSONEncoder().encode  # kombu's `dumps` would make a new encoder for each text
# fields of `HeldTask` that the neutral form keeps as they are
_SAME = (
    "retries",
    "exchange",
    "routing_key",
    "queue",
    "content_type",
    "content_encoding",
    "headers",
    "properties",
    "priority",
)
_same_of = attrgetter(*_SAME)
_QUEUE = (
    "routing_key",
    "durable",
    "auto_delete",
    "queue_arguments",
    "binding_arguments",
    "expires",
    "message_ttl",
    "max_length",
    "max_length_bytes",
    "max_priority",
)
_EXCHANGE = ("name", "type", "arguments", "durable", "auto_delete")
_of_queue, _of_exchange = attrgetter(*_QUEUE), attrgetter(*_EXCHANGE)  # made once: every send uses them


def encode_neutral(task: HeldTask) -> bytes:
    """Write a held task in the neutral form: `C1` and a JSON object with the arguments of the publish.

    Raises:
        TypeError, ValueError: a header or property has a value that no broker could carry.
    """
    fields = {
        "id": task.task_id,
        "task": task.name,
        "eta": task.eta_ms,
        "raw": isinstance(task.body, bytes),
        "body": base64.b64encode(task.body).decode("ascii") if isinstance(task.body, bytes) else task.body,
        "declare": list(task.declare),
        "ttl_until": task.ttl_until_ms,
        **dict(zip(_SAME, _same_of(task), strict=True)),
    }
    text: str = dumps(fields)
    return NEUTRAL + text.encode("utf-8")


def decode(body: bytes) -> HeldTask:
    """Read a held task from the body of its item. The body has one of the two forms at the top of this module.

    Raises:
        Rejected: the body has neither form; nothing was changed.
    """
    try:
        return _from_neutral(loads(body[len(NEUTRAL) :])) if body.startswith(NEUTRAL) else _from_push(body)
    except Rejected as error:
        raise Rejected(
            f"the body ({len(body)} bytes) has neither the neutral form nor the push form; nothing was changed"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Rejected(f"the body ({len(body)} bytes) is no held task: {error!r}; nothing was changed") from error


def _from_neutral(fields: dict[str, Any]) -> HeldTask:
    body = fields["body"]
    return HeldTask(
        task_id=fields["id"],
        name=fields["task"],
        eta_ms=fields["eta"],
        body=base64.b64decode(body) if fields["raw"] else body,
        declare=tuple(fields["declare"]),
        ttl_until_ms=fields["ttl_until"],
        **{name: fields[name] for name in _SAME},
    )


def _from_push(body: bytes) -> HeldTask:
    form = decode_push(body)
    message = loads(form.pieces[0])
    headers = {name: value for name, value in message["headers"].items() if name != MARK}
    properties = dict(message["properties"])
    delivery = properties.pop("delivery_info")
    encoding = properties.pop("body_encoding", None)
    properties.pop("delivery_tag", None)
    priority = properties.pop("priority", None)
    eta_ms = due_of(headers)
    if eta_ms is None:
        raise ValueError(headers.get("eta"))
    ttl = properties.get("expiration")
    return HeldTask(
        task_id=headers["id"],
        name=headers["task"],
        retries=headers.get("retries") or 0,
        eta_ms=eta_ms,
        exchange=delivery.get("exchange") or "",
        routing_key=delivery["routing_key"],
        queue=delivery["routing_key"],
        body=base64.b64decode(message["body"]) if encoding == "base64" else message["body"],
        content_type=message["content-type"],
        content_encoding=message["content-encoding"],
        headers=headers,
        properties=properties,
        priority=priority,
        ttl_until_ms=eta_ms + int(ttl) if ttl is not None else None,
    )


class RedisQueue:
    """Writes held tasks in push form for one broker. The Redis server pushes this form to the list of the queue.

    Args:
        connection: a connection to the broker. Only its class and options are used; it does not connect.
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
        """Whether this class can write for the broker: the broker's messages are elements of plain Redis lists."""
        channel_class = getattr(connection.get_transport_cls(), "Channel", None)
        # not imported here: an app with a Redis broker has imported it, and with another broker the import may fail
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
        """The task in push form, to be sent at `now_ms`; None when only a publisher can send this task."""
        if task.exchange or not task.routing_key or "task" not in task.headers:
            return None
        if any(entity["kind"] == "queue" and entity["expires"] for entity in task.declare):
            return None
        if due_of(task.headers) != task.eta_ms or task.headers.get("id") != task.task_id:
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


# -- queues and exchanges as plain values, so that the release of a held message can declare them again


def values_of(entities: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    """Queues and exchanges as plain values. Leaves out queues that are exclusive, or not to be declared."""
    return tuple(value for value in map(_value, entities) if value is not None)


def _value(entity: Any) -> dict[str, Any] | None:
    if isinstance(entity, Exchange):
        return {"kind": "exchange", **_exchange(entity)}
    if not isinstance(entity, Queue) or entity.no_declare or getattr(entity, "exclusive", False):
        return None
    return {
        "kind": "queue",
        "name": entity.name,
        "exchange": None if entity.exchange is None else _exchange(entity.exchange),
        **dict(zip(_QUEUE, _of_queue(entity), strict=True)),
    }


def _exchange(exchange: Any) -> dict[str, Any]:
    return dict(zip(_EXCHANGE, _of_exchange(exchange), strict=True))


def entity_of(value: Mapping[str, Any]) -> Any:
    """The queue or exchange that `values_of` wrote as a plain value."""
    if value["kind"] == "exchange":
        return Exchange(**{name: value[name] for name in _EXCHANGE})
    exchange = value["exchange"]
    return Queue(
        value["name"],
        exchange=None if exchange is None else Exchange(**exchange),
        **{name: value[name] for name in _QUEUE},
    )
