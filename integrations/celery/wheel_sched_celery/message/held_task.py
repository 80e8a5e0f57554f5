"""A held task: the finished broker message, its destination, and its id and refs in the store.

Celery accepts the same task id several times, with other arguments, other headers or for other queues, and runs each
message. So the id of an item contains the task id, the retry, the ETA, and a digest of everything else that makes two
messages different (see `MessageKind`). Copies of one message have the same digest. Copies exist in two cases. A
producer sends a message again after a lost reply. Or a producer gets no answer from the store and sends the message
through the broker, and a worker then puts it into the store. What an exchange puts into several queues are different
messages.

The functions are pure, so any thread may call them.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from json import JSONEncoder
from typing import Any, Final

from kombu.compression import decompress
from kombu.utils.functional import maybe_list
from kombu.utils.json import dumps, loads

from wheel_sched.errors import Rejected
from wheel_sched.store.core.items import Item
from wheel_sched.store.fair_shares import fair_ref
from wheel_sched_celery.message.headers import MARK, fair_key_of, iso_of

REVOKED = "revoked"  # the reason under which a revoked task is held until it is announced
TAKEN_OVER = "taken-over"  # the ref of tasks that a worker took from a queue, where stock Celery had sent them
_LONGEST_ID = 400  # of the 512 bytes of an item id; retries, ETA and digest need the rest
_LONGEST_NAME = 240
_LONGEST_TTL_MS = 2**32 - 1  # 49 days; RabbitMQ closes the channel if a TTL is longer
_DIGEST_BYTES = 9  # enough to tell the few messages of one task id apart

# Headers that do not make two messages different. The id or `MessageKind` has them already, or they repeat the body,
# name the sender, or say how the message travelled.
_LEFT_OUT: Final = frozenset(
    {"task", "id", "retries", "eta", "expires", "argsrepr", "kwargsrepr", "origin", "root_id", "parent_id"}
    | {"compression", "stamped_headers", "stamps", MARK}
)
# Headers that brokers and kombu's Redis transport add, and headers that tracing libraries write at each send.
_ADDED: Final = re.compile(
    r"redelivered|x-(?:death|(?:first|last)-death-.*|delivery-count|acquired-count|received-from|delay|opt-.*)"
    r"|traceparent|tracestate|baggage|sentry-.*|b3|x-b3-.*|uber-trace-id|x-datadog-.*|x-amzn-trace-id|newrelic"
    r"|elastic-?apm-.*",
    re.IGNORECASE,
)
_OF_A_THREAD: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # Celery's own `reply_to`


@dataclass(frozen=True, slots=True)
class HeldTask:
    """One message that waits in the store.

    Args:
        task_id: the task's id in Celery.
        name: the task's name.
        retries: how many attempts came before.
        eta_ms: when the task is due, in ms since 1970; of a debounced task: when it was sent.
        exchange, routing_key: where to publish the message; with exchange "" the key names the queue.
        queue: the queue's name when it is known, else "".
        body: the body as the broker gets it, so it is compressed if the task asks for compression.
        content_type, content_encoding, headers, properties, priority: of the message, as kombu publishes it.
        declare: queues and exchanges to declare before publishing, see `stored_forms`.
        ttl_until_ms: when the message's TTL in the broker (`expiration`) ends; None = it has none.
        taken_over: whether a worker moved the message from a queue into the store. Not stored: the item has the ref
            `taken-over`.
        one_of_many: whether an exchange may have put copies of the message into other queues. Not stored.
        sent_to: exchange and routing key that the producer used, if `taken_over`. Not stored.
        once_ref: the ref of collapse or debounce, else "". Not stored.
        due_ms: when the task leaves the store, if that does not follow from the ETA. Not stored.
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
    once_ref: str = ""
    due_ms: int | None = None

    @property
    def item_id(self) -> str:
        """The id of the task's item. All deliveries of a message have the same id; each retry and ETA has another one.

        If an exchange puts a message into several queues, the copy in each queue has its own id. If a producer does not
        know whether the store has a task, it sends the task through the broker. A worker that then puts this message
        into the store computes the same id, unless `one_of_many`.
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
        """The item to store. Its topic is the queue, or the routing key if the queue is not known.

        Its refs are the task id, the stamps, the fair key, and the marks of takeover and of collapse or debounce.
        """
        key = fair_key_of(self.headers)
        marks: tuple[str, ...] = () if key is None else (fair_ref(key),)
        marks += (*((TAKEN_OVER,) if self.taken_over else ()), *((self.once_ref,) if self.once_ref else ()))
        return Item(
            self.item_id,
            release_ms(self.eta_ms, lead_ms) if self.due_ms is None else self.due_ms,
            body,
            bounded(self.queue or self.routing_key, _LONGEST_NAME),  # the topic
            (ref_of(self.task_id), *map(stamp_ref, self.stamps), *marks),
            bounded(self.task_id),
        )

    @property
    def stamps(self) -> list[tuple[str, Any]]:
        """Name and value of each stamp of the task."""
        names, values = self.headers.get("stamped_headers"), self.headers.get("stamps")
        if not isinstance(names, list | tuple) or not isinstance(values, Mapping):
            return []
        return [(name, value) for name in map(str, names) for value in maybe_list(values.get(name)) or ()]

    def with_eta(self, eta_ms: int) -> HeldTask:
        """The same task with another ETA.

        Raises:
            Rejected: the ETA is in a body that cannot be rewritten; nothing was changed.
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
        """The properties for publishing at `now_ms`, with the rest of the message's TTL, at most 49 days.

        If the TTL is over, the message gets no TTL: a worker must receive it to mark the task as revoked.
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
    """Make an item's id. The shard is computed from `route`."""
    return f"{route}:{retries}:{eta_ms}:{digest}"


def route_of(item_id: str) -> str:
    """The route in an item's id: the text that chooses the shard, see `item_id_of`."""
    return item_id.rsplit(":", 3)[0]


def ref_of(task_id: str) -> str:
    """The ref by which `DelayStore.find` finds the items of a task."""
    return "task:" + bounded(task_id, _LONGEST_NAME - 5)


def stamp_ref(stamp: tuple[str, Any]) -> str:
    """The ref of items with a stamp, by which `revoke_by_stamped_headers` finds them."""
    return "stamp:" + bounded(f"{stamp[0]}={stamp[1]}", _LONGEST_NAME - 6)


def bounded(text: str, longest: int = _LONGEST_ID) -> str:
    """`text`, or a digest of it when the store does not accept it as a name."""
    if len(text) <= longest and text.isascii() and text.isprintable():
        return text
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= longest and "\n" not in text and "\0" not in text:
        return text
    return "sha256-" + hashlib.sha256(raw).hexdigest()


class MessageKind:
    """Everything that the digest of a message covers, except the body: all that `item_id_of` does not get by itself.

    Args:
        name: the task's name.
        sent_to: exchange and routing key to which the producer published the message.
        priority: the message's priority. None counts as 0, as it does for a broker.
        headers: the headers of the message.
        stamps: name and value of each stamp, in any order.
        reply_to: the message's property `reply_to`.
        copy: the queue of this copy, if an exchange put the message into several queues; else "".

    Raises:
        TypeError, ValueError: a header has a value that no broker could carry.
    """

    def __init__(
        self,
        name: str,
        sent_to: tuple[str, str],
        priority: int | None,
        headers: Mapping[str, Any],
        stamps: list[tuple[str, Any]],
        reply_to: object = "",
        copy: str = "",
    ) -> None:
        if isinstance(reply_to, str) and _OF_A_THREAD.fullmatch(reply_to):
            reply_to = ""
        named = sorted(f"{stamp}={value}" for stamp, value in stamps)
        rest = _encode([_counting(headers), named, reply_to or ""])
        text = "\0".join(map(str, (name, *sent_to, priority or 0, headers.get("expires") or "", copy, rest, "")))
        self._hash = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)

    def digest(self, body: bytes | str, compression: str | None = None) -> str:
        """The digest for the id of an item. Equal messages of this kind, with the same body, have the same digest.

        `compression` names how `body` is compressed, if it is. The digest is that of the body without compression.
        """
        if compression:
            with contextlib.suppress(Exception):  # not compressed after all: no worker can read it
                body = decompress(body, compression)
        digest = self._hash.copy()
        digest.update(body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def _counting(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that make two messages different. A header with the value None counts as absent.

    Some libraries repeat their headers in a header named `headers`. Its contents are treated like the headers.
    """
    counting = {
        name: value
        for name, value in headers.items()
        if value is not None and name not in _LEFT_OUT and not _ADDED.fullmatch(name)
    }
    below = counting.get("headers")
    if isinstance(below, Mapping):
        counting["headers"] = _counting(below)
        if not counting["headers"]:
            del counting["headers"]
    return counting


def _plain(value: Any) -> Any:
    """Turn a value that JSON does not know into one that it knows. A datetime becomes whole seconds, as in AMQP."""
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


_encode: Final = JSONEncoder(sort_keys=True, default=_plain).encode
