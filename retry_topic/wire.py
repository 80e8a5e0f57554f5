"""Messages as bodies in the delay store, and back.

A body is in push form, so that the server can push it to a stream by itself: target and the flat field list of the
stream entry. Every other broker takes it apart again and publishes the message.
"""

from __future__ import annotations

from retry_topic.brokers.redis_streams.entries import from_entry, to_fields
from retry_topic.message import Message
from wheel_sched.store import decode_push, encode_push


def encode_body(message: Message) -> bytes:
    """The body that sends `message` to its topic.

    Raises:
        Rejected: it has no topic or too many headers.
    """
    return encode_push("S", message.topic, to_fields(message))


def decode_body(body: bytes) -> Message:
    """The message a body sends.

    Raises:
        Rejected: the body is not in push form.
    """
    form = decode_push(body)
    message = from_entry(form.target, b"0-0", form.pieces)
    return message.to(form.target)
