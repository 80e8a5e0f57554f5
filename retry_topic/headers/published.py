"""A message that is published for later carries the id it is stored under: whatever brings it, its handler sees it."""

from __future__ import annotations

from retry_topic.headers.names import FIELDS, HEADER_NAMES
from retry_topic.headers.values import encode
from retry_topic.message import Headers, Message
from wheel_sched.errors import Rejected


def published(message: Message, message_id: str, now_ms: int) -> Message:
    """`message` with its id, when it was published and where it goes, as headers.

    Args:
        message: to be stored until it is due.
        message_id: what it is stored under.
        now_ms: by the store's clock; tells two messages apart that are given one id, one after the other.

    Raises:
        Rejected: the id cannot be a header.
    """
    name = encode(FIELDS["id"], message_id)
    if name is None:
        raise Rejected(
            f"expected an id of at most {FIELDS['id'].max_bytes} printable bytes, got: {message_id!r:.100}; "
            "nothing was stored"
        )
    said = [(FIELDS["id"].header, name), (FIELDS["published_ms"].header, b"%d" % now_ms)]
    topic = encode(FIELDS["original_topic"], message.topic) if message.topic else None
    if topic is not None:  # so that headers which are copied onto a message of another topic are known as copies
        said.append((FIELDS["original_topic"].header, topic))
    return message.to(message.topic, (*without_ours(message.headers), *said))


def without_ours(headers: Headers) -> Headers:
    """What a message says beside our headers: those of another message say nothing about this one."""
    return tuple(pair for pair in headers if pair[0] not in HEADER_NAMES)
