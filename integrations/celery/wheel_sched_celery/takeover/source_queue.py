"""The queue from which a worker moved a message into the store, and to which the message returns when it is due.

A due message returns to its queue and not to its exchange: if several queues are bound to the exchange, each would get
the message again. RabbitMQ names the consumer of a delivery, and so its queue. Other transports name exchange and key
only. That is enough if exactly one of the queues that this worker consumes matches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def own_queue(message: Any, consumer: Any) -> Any | None:
    """The `kombu.Queue` that `message` came from; None when it is not certain, or when the message is a broadcast.

    Args:
        message: the received message, an object of kombu.
        consumer: kombu's consumer of this worker's queues.
    """
    delivery = message.delivery_info or {}
    queues = [queue for queue in consumer.queues if consumer.consuming_from(queue.name)]
    tag = delivery.get("consumer_tag")
    if tag:
        tags = getattr(consumer, "_active_tags", {})
        found = [queue for queue in queues if tags.get(queue.name) == tag]
    else:
        exchange, key = delivery.get("exchange") or "", delivery.get("routing_key")
        found = [queue for queue in queues if _matches(queue, exchange, key)]
    if len(found) != 1 or found[0].exchange.type == "fanout":
        return None
    return found[0]


def _matches(queue: Any, exchange: str, key: str | None) -> bool:
    if not exchange:
        return bool(queue.name == key)
    if queue.exchange.name != exchange:
        return False
    if queue.exchange.type == "topic":
        return _topic_matches((queue.routing_key or "").split("."), (key or "").split("."))
    return bool(queue.exchange.type != "direct" or queue.routing_key == key)


def _topic_matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Whether a routing key matches a topic pattern of AMQP: * is one word, # any number of words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_topic_matches(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _topic_matches(pattern[1:], words[1:])
