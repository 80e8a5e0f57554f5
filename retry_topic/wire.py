"""Messages as bodies in the delay store, and back.

A body is in push form, so that the server can push it to a stream by itself: target and the flat field list of the
stream entry. Every other broker takes it apart again and publishes the message.

A message by reference has its payload elsewhere, and in front of the push form where:

    R1["<topic>",<partition>,<offset>,<length>,"<digest>"]\n<push form with an empty value>

No server pushes that, and a release that does not know it holds it for a person instead of sending it without payload.

A body has no partition and no time: a message that failed has in its headers where and when it was read, and is sent
there again (`headers.homeward`); one that did not fail is given both by its topic.
"""

from __future__ import annotations

import json
from dataclasses import astuple, replace

from retry_topic.fields import from_fields, to_fields
from retry_topic.message import Message, Reference
from wheel_sched.errors import Rejected
from wheel_sched.store import decode_push, encode_push

_REFERENCE = b"R1"


def encode_body(message: Message) -> bytes:
    """The body that sends `message` to its topic.

    Raises:
        Rejected: it has no topic, too many headers, a name that is no text, or a partition or time of its own.
    """
    if message.partition is not None or message.timestamp_ms is not None:
        raise Rejected(
            "expected a message that waits to leave partition and timestamp_ms to its topic, got: "
            f"{message.partition} and {message.timestamp_ms}; nothing was stored"
        )
    try:
        body = encode_push("S", message.topic, to_fields(message))
        if message.reference is None or message.value:
            return body
        return b"%s%s\n%s" % (_REFERENCE, json.dumps(astuple(message.reference)).encode(), body)
    except UnicodeEncodeError as error:  # an unpaired surrogate, which no server could give back
        raise Rejected(
            f"expected the topic and the names of headers to be text ({error}); nothing was stored"
        ) from error


def decode_body(body: bytes) -> Message:
    """The message a body sends.

    Raises:
        Rejected: the body is not in push form, or pushes to a list.
    """
    reference, plain = taken_apart(body)
    form = decode_push(plain)
    if form.kind != "S":
        raise Rejected(f"the body ({len(body)} bytes) is for a list and holds no message; it was left as it is")
    message = from_fields(form.target, form.pieces)
    return message if reference is None else replace(message, reference=reference)


def taken_apart(body: bytes) -> tuple[Reference | None, bytes]:
    """Where a body's payload lies, None where it holds it; and the push form.

    Raises:
        Rejected: what should say where it lies does not.
    """
    if not body.startswith(_REFERENCE):
        return None, body
    head, _, plain = body[len(_REFERENCE) :].partition(b"\n")
    try:
        topic, partition, offset, length, digest = json.loads(head)
        whole = all(type(number) is int and number >= 0 for number in (partition, offset, length))
    except (ValueError, TypeError, RecursionError) as error:
        raise Rejected(f"the body ({len(body)} bytes) refers to nothing; it was left as it is") from error
    if not (whole and isinstance(topic, str) and isinstance(digest, str)):
        raise Rejected(f"the body ({len(body)} bytes) refers to nothing; it was left as it is")
    return Reference(topic, partition, offset, length, digest), plain
