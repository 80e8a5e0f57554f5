"""A held task: the finished broker message, its destination, and the names by which people find it.

The store keeps it in one of two forms.

- *Push form* (`wheel_sched.store.push.push_form`): exactly the element that the Redis server pushes to the queue's
  list.
- *Neutral form*: `C1` and a JSON object with the arguments of the publish, for every other broker. kombu's own JSON
  (dates, decimals, bytes) writes and reads it; nothing that is read is executed.

Invariant: both forms lead to the same message, and it is byte for byte the message of stock Celery, with two
exceptions: the broker's TTL is shorter by the time held, and there is one more header (see `dispatch_mark`). A
`HeldTask` does not contain that header.
Pure; any thread.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kombu.utils.functional import maybe_list
from kombu.utils.json import dumps, loads

from wheel_sched.errors import Rejected
from wheel_sched.store.core.items import Item
from wheel_sched.store.push.push_form import decode_push
from wheel_sched_celery.message.dispatch_mark import unmarked
from wheel_sched_celery.message.due import instant_ms, iso_of
from wheel_sched_celery.message.identity import MessageKind

NEUTRAL = b"C1"
REVOKED = "revoked"  # the reason under which a revoked task is held until it is announced
TAKEN_OVER = "taken-over"  # the ref of tasks that a worker took from a queue, where stock Celery had sent them
_LONGEST_ID = 400  # of the 512 bytes of an item id; retries, ETA and digest need the rest
_LONGEST_NAME = 240
_LONGEST_TTL_MS = 2**32 - 1  # RabbitMQ closes the channel over a longer one; 49 days


@dataclass(frozen=True, slots=True)
class HeldTask:
    """One message on hold.

    Args:
        task_id: as Celery knows it.
        name: the task's name.
        retries: how many attempts came before.
        eta_ms: when it is due.
        exchange, routing_key: where it is published; with exchange "" the key names the queue.
        queue: the queue's name when it is known, else "".
        body: as it is sent, so compressed if the task asks for compression.
        content_type, content_encoding, headers, properties, priority: of the message, as kombu publishes it.
        declare: entities to declare before publishing, see `entities`.
        ttl_until_ms: when the broker's own TTL (`expiration`) ends; None = it has none.
        taken_over: whether a worker took it from a queue. Not stored: the item has the ref `taken-over` instead.
        one_of_many: whether an exchange may have put copies of it into other queues. Not stored.
        sent_to: exchange and routing key that its producer used, when it goes straight to a queue now. Not stored.
    """

    task_id: str
    name: str
    retries: int
    eta_ms: int
    exchange: str
    routing_key: str
    queue: str
    body: bytes | str
    content_type: str | None
    content_encoding: str | None
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    priority: int | None = None
    declare: tuple[Mapping[str, Any], ...] = ()
    ttl_until_ms: int | None = None
    taken_over: bool = False
    one_of_many: bool = False
    sent_to: tuple[str, str] | None = None

    @property
    def item_id(self) -> str:
        """The id of its item: the same for every delivery of one message, another one for every retry, ETA and copy.

        If a producer does not know whether it held a task, and sends it the stock way, a takeover finds the same id
        (see `message.identity`).
        """
        kind = MessageKind(
            self.name,
            self.sent_to or (self.exchange, self.routing_key),
            self.priority,
            self.headers,
            self.stamps,
            self.properties.get("reply_to"),
            self.queue if self.one_of_many else "",
        )
        digest = kind.digest(self.body, self.headers.get("compression"))
        return item_id_of(bounded(self.task_id), self.retries, self.eta_ms, digest)

    def item(self, body: bytes, lead_ms: int) -> Item:
        """The item to store. People find it by task id and stamps, and it is counted under its queue."""
        return Item(
            self.item_id,
            release_ms(self.eta_ms, lead_ms),
            body,
            topic_of(self.queue or self.routing_key),
            (ref_of(self.task_id), *map(stamp_ref, self.stamps), *((TAKEN_OVER,) if self.taken_over else ())),
            bounded(self.task_id),
        )

    @property
    def stamps(self) -> list[tuple[str, Any]]:
        """Name and value of each of its stamps."""
        names, values = self.headers.get("stamped_headers"), self.headers.get("stamps")
        if not isinstance(names, list | tuple) or not isinstance(values, Mapping):
            return []
        return [(name, value) for name in map(str, names) for value in maybe_list(values.get(name)) or ()]

    def with_eta(self, eta_ms: int) -> HeldTask:
        """The same task at another time.

        Raises:
            Rejected: the ETA lies in a body that cannot be rewritten; nothing was changed.
        """
        ttl = self.ttl_until_ms
        moved = replace(self, eta_ms=eta_ms, ttl_until_ms=None if ttl is None else ttl + max(0, eta_ms - self.eta_ms))
        if "task" in self.headers:
            return replace(moved, headers={**self.headers, "eta": iso_of(eta_ms)})
        if self.content_type != "application/json" or "compression" in self.headers:
            raise Rejected(
                f"task {self.task_id}: its ETA lies in a body of type {self.content_type}, which cannot be "
                "rewritten; nothing was changed"
            )
        payload = loads(self.body)
        payload["eta"] = iso_of(eta_ms)
        return replace(moved, body=dumps(payload))

    def properties_at(self, now_ms: int) -> dict[str, Any]:
        """Properties for publishing at `now_ms`, with the rest of the TTL.

        A TTL that has run out is left out: a worker must receive the message to mark the task as revoked.
        """
        properties = dict(self.properties)
        if self.ttl_until_ms is not None:
            properties.pop("expiration", None)
            if self.ttl_until_ms > now_ms:
                properties["expiration"] = str(min(self.ttl_until_ms - now_ms, _LONGEST_TTL_MS))
        return properties


def release_ms(eta_ms: int, lead_ms: int) -> int:
    """When a task leaves the store for its queue: `lead_ms` before it is due, or a little later.

    The time is rounded up to an eighth of the lead, so that tasks with close due times leave together. The dispatcher
    then wakes a few times a second beside the worker's own work, instead of once for each task.
    """
    grid_ms = max(1, lead_ms // 8)
    return max(0, -(-(eta_ms - lead_ms) // grid_ms) * grid_ms)


def item_id_of(route: str, retries: int, eta_ms: int, digest: str) -> str:
    """An item's id. Its route chooses the shard."""
    return f"{route}:{retries}:{eta_ms}:{digest}"


def route_of(item_id: str) -> str:
    """The route in an item's id."""
    return item_id.rsplit(":", 3)[0]


def ref_of(task_id: str) -> str:
    """The ref by which `DelayStore.find` finds the items of a task."""
    return "task:" + bounded(task_id, _LONGEST_NAME - 5)


def stamp_ref(stamp: tuple[str, Any]) -> str:
    """The ref of items with a stamp. `revoke_by_stamped_headers` knows nothing but the stamp."""
    return "stamp:" + bounded(f"{stamp[0]}={stamp[1]}", _LONGEST_NAME - 6)


def topic_of(queue: str) -> str:
    """The topic under which the items of a queue are counted and paused."""
    return bounded(queue, _LONGEST_NAME)


def bounded(text: str, longest: int = _LONGEST_ID) -> str:
    """`text`, or a digest of it when the store does not accept it as a name."""
    if len(text) <= longest and text.isascii() and text.isprintable():
        return text
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= longest and "\n" not in text and "\0" not in text:
        return text
    return "sha256-" + hashlib.sha256(raw).hexdigest()


def encode_neutral(task: HeldTask) -> bytes:
    """The neutral form.

    Raises:
        TypeError, ValueError: a header or property has a value that no broker could carry.
    """
    raw = task.body if isinstance(task.body, bytes) else None
    fields = {
        "id": task.task_id,
        "task": task.name,
        "retries": task.retries,
        "eta": task.eta_ms,
        "exchange": task.exchange,
        "routing_key": task.routing_key,
        "queue": task.queue,
        "body": task.body if raw is None else base64.b64encode(raw).decode("ascii"),
        "raw": raw is not None,
        "content_type": task.content_type,
        "content_encoding": task.content_encoding,
        "headers": dict(task.headers),
        "properties": dict(task.properties),
        "priority": task.priority,
        "declare": list(task.declare),
        "ttl_until": task.ttl_until_ms,
    }
    text: str = dumps(fields)
    return NEUTRAL + text.encode("utf-8")


def decode(body: bytes) -> HeldTask:
    """A held task from either form.

    Raises:
        Rejected: it has neither form; nothing was changed.
    """
    try:
        return _from_neutral(loads(body[len(NEUTRAL) :])) if body.startswith(NEUTRAL) else _from_push(body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, Rejected):
            raise
        raise Rejected(f"the body ({len(body)} bytes) is no held task: {error!r}; nothing was changed") from error


def _from_neutral(fields: dict[str, Any]) -> HeldTask:
    body = fields["body"]
    return HeldTask(
        task_id=fields["id"],
        name=fields["task"],
        retries=fields["retries"],
        eta_ms=fields["eta"],
        exchange=fields["exchange"],
        routing_key=fields["routing_key"],
        queue=fields["queue"],
        body=base64.b64decode(body) if fields["raw"] else body,
        content_type=fields["content_type"],
        content_encoding=fields["content_encoding"],
        headers=fields["headers"],
        properties=fields["properties"],
        priority=fields["priority"],
        declare=tuple(fields["declare"]),
        ttl_until_ms=fields["ttl_until"],
    )


def _from_push(body: bytes) -> HeldTask:
    form = decode_push(body)
    message = loads(form.pieces[0])
    headers, properties = unmarked(message["headers"]), dict(message["properties"])
    delivery = properties.pop("delivery_info")
    encoding = properties.pop("body_encoding", None)
    properties.pop("delivery_tag", None)
    priority = properties.pop("priority", None)
    eta_ms = instant_ms(headers["eta"], None)
    if eta_ms is None:
        raise ValueError(headers["eta"])
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
