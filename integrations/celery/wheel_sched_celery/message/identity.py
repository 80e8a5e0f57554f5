"""Which messages are copies of one message: the digest in an item's id, beside task id, retry and ETA.

Celery accepts the same task id several times, with other arguments, other headers or to other queues, and runs each
message. So the id of an item contains a digest of what runs, how, and where. A copy has the same digest: a producer
sends a message twice when a reply is lost, or holds it, gets no answer, sends it the stock way, and a worker takes the
copy over.

The digest leaves out what a broker or a second send changes: delivery tags, headers that a broker adds, the sender
(process, thread, parent task), tracing ids; and the texts of arguments, which repeat the body. It uses the body without
compression, because the kombu of a worker has already decompressed it.

Pure; any thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from json import JSONEncoder
from typing import Any, Final

from kombu.compression import decompress

from wheel_sched_celery.message.dispatch_mark import MARK

_DIGEST_BYTES = 9  # enough to tell the few messages of one task id apart

# in the id or in `MessageKind` already; repeats the body; names the sender; says how it travelled
_LEFT_OUT: Final = frozenset(
    {"task", "id", "retries", "eta", "expires", "argsrepr", "kwargsrepr", "origin", "root_id", "parent_id"}
    | {"compression", "stamped_headers", "stamps", MARK}
)
# headers that brokers and kombu's Redis transport add, and that tracing libraries add at each send
_ADDED: Final = re.compile(
    r"redelivered|x-(?:death|(?:first|last)-death-.*|delivery-count|acquired-count|received-from|delay|opt-.*)"
    r"|traceparent|tracestate|baggage|sentry-.*|b3|x-b3-.*|uber-trace-id|x-datadog-.*|x-amzn-trace-id|newrelic"
    r"|elastic-?apm-.*",
    re.IGNORECASE,
)
_OF_A_THREAD: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # Celery's own `reply_to`, as `origin`


class MessageKind:
    """Everything of a message that counts, except its body. Messages of one kind differ in the body only.

    Args:
        name: the task's name.
        sent_to: exchange and routing key of its publish.
        priority: None counts as 0, as it does for a broker.
        headers: of the message.
        stamps: name and value of each of its stamps, in any order.
        reply_to: the message's property.
        copy: the queue of this copy, when an exchange put the message into several queues; else "".

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
        """The digest of a message of this kind with this body."""
        if compression:
            with contextlib.suppress(Exception):  # not really compressed: no worker can read it, so any digest will do
                body = decompress(body, compression)
        digest = self._hash.copy()
        digest.update(body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def _counting(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that count. None means the same as no header. Some libraries repeat theirs below `headers`."""
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
    """A value that JSON does not know, as text. Brokers return dates in whole seconds, without a zone."""
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


_encode: Final = JSONEncoder(sort_keys=True, default=_plain).encode
