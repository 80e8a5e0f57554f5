"""When two messages are the same one: what an item's id says besides task id, retry and ETA.

Celery lets a task id be sent several times, with other arguments, headers or to other queues, and runs each. So the id
of an item holds a digest of what would run, how, and where. A message that is seen again has the same digest: sent
twice because a reply was lost, or held by its producer in doubt, then sent the stock way and found by a worker.

Left out is what a broker or another attempt to send changes: delivery tags, a broker's own headers, who sent it
(process, thread, parent task), ids of tracing; and the texts of arguments, which only tell again what stands in the
body. The body counts as it is without compression, which a worker's kombu has undone.

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

_DIGEST_BYTES = 9  # it tells the few messages of one task id apart, not all messages

# in the id or in `MessageKind` already; told by the body; who sent it; how it travelled
_LEFT_OUT: Final = frozenset(
    {"task", "id", "retries", "eta", "expires", "argsrepr", "kwargsrepr", "origin", "root_id", "parent_id"}
    | {"compression", "stamped_headers", "stamps", MARK}
)
# what brokers and kombu's Redis transport add, and what libraries that trace add at each sending
_ADDED: Final = re.compile(
    r"redelivered|x-(?:death|(?:first|last)-death-.*|delivery-count|acquired-count|received-from|delay|opt-.*)"
    r"|traceparent|tracestate|baggage|sentry-.*|b3|x-b3-.*|uber-trace-id|x-datadog-.*|x-amzn-trace-id|newrelic"
    r"|elastic-?apm-.*",
    re.IGNORECASE,
)
_OF_A_THREAD: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # Celery's own `reply_to`, as `origin`


class MessageKind:
    """What messages of one kind have in common; the body is what differs.

    Args:
        name: of the task.
        sent_to: exchange and routing key it was published with.
        priority: None counts as 0, which is what a broker makes of it.
        headers: of the message.
        stamps: name and value of each of its stamps, in any order.
        reply_to: the message's property.
        copy: of a message that an exchange put into several queues, the one this copy was in; else "".

    Raises:
        TypeError, ValueError: headers hold what no broker could carry.
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
        rest = _encode([_told(headers), named, reply_to or ""])
        text = "\0".join(map(str, (name, *sent_to, priority or 0, headers.get("expires") or "", copy, rest, "")))
        self._hash = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)

    def digest(self, body: bytes | str, compression: str | None = None) -> str:
        """Of the message of this kind with this body."""
        if compression:
            with contextlib.suppress(Exception):  # it only says so: no worker will read it, whatever it counts as
                body = decompress(body, compression)
        digest = self._hash.copy()
        digest.update(body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def _told(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that count. None says as much as no header; some libraries write theirs a second time below
    `headers`."""
    told = {
        name: value
        for name, value in headers.items()
        if value is not None and name not in _LEFT_OUT and not _ADDED.fullmatch(name)
    }
    below = told.get("headers")
    if isinstance(below, Mapping):
        told["headers"] = _told(below)
        if not told["headers"]:
            del told["headers"]
    return told


def _plain(value: Any) -> Any:
    """What JSON has no word for. Brokers give dates back in whole seconds, without a zone."""
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


_encode: Final = JSONEncoder(sort_keys=True, default=_plain).encode
