"""Queues and exchanges as plain values, so that the release of a held message can declare them again.

The values contain what a broker needs to know. Exclusive queues belong to the connection that declared them, so they
are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from kombu import Exchange, Queue

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


def values_of(entities: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    """Plain values of the entities that any connection may declare."""
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
    """The entity of a plain value."""
    if value["kind"] == "exchange":
        return Exchange(**{name: value[name] for name in _EXCHANGE})
    exchange = value["exchange"]
    return Queue(
        value["name"],
        exchange=None if exchange is None else Exchange(**exchange),
        **{name: value[name] for name in _QUEUE},
    )
