"""When two messages are the same one: what an item's id says besides task id, retry and ETA.

Celery lets a task id be sent several times, with other arguments or to other queues, and runs each. So the id of an
item holds a digest of what would run, and where. A message that is seen again has the same digest: sent twice because
a reply was lost, or held by its producer in doubt, then sent the stock way and found by a worker.

Left out is what a broker or another attempt to send changes: delivery tags, `origin`, a broker's own headers. The body
counts as it is without compression, which a worker's kombu has undone.

Pure; any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from kombu.compression import decompress

_DIGEST_BYTES = 9  # it tells the few messages of one task id apart, not all messages


class MessageKind:
    """What messages of one kind have in common; the body is what differs.

    Args:
        name: of the task.
        sent_to: exchange and routing key it was published with.
        priority: None counts as 0, which is what a broker makes of it.
        expires: the header's text.
        copy: of a message that an exchange put into several queues, the one this copy was in; else "".
    """

    def __init__(
        self, name: str, sent_to: tuple[str, str], priority: int | None, expires: object, copy: str = ""
    ) -> None:
        text = "\0".join((name, *sent_to, str(priority or 0), str(expires or ""), copy, ""))
        self._hash = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)

    def digest(self, body: bytes | str, headers: Mapping[str, Any]) -> str:
        """Of the message of this kind with this body."""
        compression = headers.get("compression")
        if compression:
            body = decompress(body, compression)
        digest = self._hash.copy()
        digest.update(body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body)
        return digest.hexdigest()
