"""Messages as bodies in the delay store, and back.

A body is in push form, so that the server can push it to a stream by itself: target and the flat field list of the
stream entry. Every other broker takes it apart again and publishes the message.
"""

from __future__ import annotations

from retry_topic.fields import from_fields, to_fields
from retry_topic.message import Message
from wheel_sched.errors import Rejected
from wheel_sched.store import decode_push, encode_push


def encode_body(message: Message) -> bytes:
    """The body that sends `message` to its topic.

    Raises:
        Rejected: it has no topic, too many headers, or a name that is no text.
    """
    try:
        return encode_push("S", message.topic, to_fields(message))
    except UnicodeEncodeError as error:  # an unpaired surrogate, which no server could give back
        raise Rejected(
            f"expected the topic and the names of headers to be text ({error}); nothing was stored"
        ) from error


def decode_body(body: bytes) -> Message:
    """The message a body sends.

    Raises:
        Rejected: the body is not in push form, or pushes to a list.
    """
    form = decode_push(body)
    if form.kind != "S":
        raise Rejected(f"the body ({len(body)} bytes) is for a list and holds no message; it was left as it is")
    return from_fields(form.target, form.pieces)
