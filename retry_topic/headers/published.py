"""A published message carries its id: whatever brings it, and however often, its handler sees the same one."""

from __future__ import annotations

from retry_topic.headers.names import FIELDS, HEADER_NAMES
from retry_topic.headers.values import encode
from retry_topic.message import Headers, Message
from wheel_sched.errors import Rejected


def published(message: Message, message_id: str, now_ms: int | None = None) -> Message:
    """`message` with its id as a header; one for later also says when it was published and where it goes.

    Args:
        message: to be sent, or stored until it is due.
        message_id: what it is known under.
        now_ms: by the store's clock, of a message for later; tells two messages apart that are given one id, one after
            the other. Defaults to None: it goes at once.

    Raises:
        Rejected: the id cannot be a header.
    """
    name = encode(FIELDS["id"], message_id)
    if name is None:
        raise Rejected(
            f"expected an id of at most {FIELDS['id'].max_bytes} printable bytes, got: {message_id!r:.100}; "
            "nothing was sent"
        )
    said = [(FIELDS["id"].header, name)]
    if now_ms is not None:
        said.append((FIELDS["published_ms"].header, b"%d" % now_ms))
        topic = encode(FIELDS["original_topic"], message.topic) if message.topic else None
        if topic is not None:  # so that headers which are copied onto a message of another topic are known as copies
            said.append((FIELDS["original_topic"].header, topic))
    return message.to(message.topic, (*without_ours(message.headers), *said))


def without_ours(headers: Headers) -> Headers:
    """What a message says beside our headers: those of another message say nothing about this one."""
    return tuple(pair for pair in headers if pair[0] not in HEADER_NAMES)
