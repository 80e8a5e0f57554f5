"""A message as the body of an item in the delay store, and back.

The body is in push form: a target and the flat field list of a stream entry. The server itself can push such a body to
a stream. For every other broker a publisher decodes the body and publishes the message.

A message by reference has its payload elsewhere. A line before its push form says where:

    R1["<topic>",<partition>,<offset>,<length>,"<digest>"]\n<push form with an empty value>

No server pushes such a body. A release that does not know the line holds the item for an operator; it does not send
the message without its payload.

A body contains no partition and no time. A failed message has both in its headers, and `headers.return_to_origin`
restores them. For any other message the topic decides.
"""

from __future__ import annotations

import json
from dataclasses import astuple, replace

from retry_topic.message import Message, Reference
from retry_topic.message.stream_encoding import from_fields, to_fields
from wheel_sched.errors import Rejected
from wheel_sched.store import decode_push, encode_push

_REFERENCE = b"R1"


def encode_body(message: Message) -> bytes:
    """The body that sends `message` to its topic.

    Raises:
        Rejected: the message has no topic, too many headers, a name that is not text, or its own partition or time.
    """
    if message.partition is not None or message.timestamp_ms is not None:
        raise Rejected(
            "expected a message for later to leave partition and timestamp_ms to its topic, got: "
            f"{message.partition} and {message.timestamp_ms}; nothing was stored"
        )
    try:
        body = encode_push("S", message.topic, to_fields(message))
        if message.reference is None or message.value:
            return body
        return b"%s%s\n%s" % (_REFERENCE, json.dumps(astuple(message.reference)).encode(), body)
    except UnicodeEncodeError as error:  # an unpaired surrogate; no server could return it
        raise Rejected(
            f"expected the topic and the names of headers to be text ({error}); nothing was stored"
        ) from error


def decode_body(body: bytes) -> Message:
    """The message that a body holds.

    Raises:
        Rejected: the body is not in push form, or its target is a list.
    """
    reference, plain = split_reference(body)
    form = decode_push(plain)
    if form.kind != "S":
        raise Rejected(f"the body ({len(body)} bytes) is for a list and holds no message; it was left as it is")
    message = from_fields(form.target, form.pieces)
    return message if reference is None else replace(message, reference=reference)


def split_reference(body: bytes) -> tuple[Reference | None, bytes]:
    """The reference in front of a body (None: the body holds its payload), and the push form behind it.

    Raises:
        Rejected: the reference cannot be read.
    """
    if not body.startswith(_REFERENCE):
        return None, body
    head, _, plain = body[len(_REFERENCE) :].partition(b"\n")
    try:
        topic, partition, offset, length, digest = json.loads(head)
        whole = all(type(number) is int and number >= 0 for number in (partition, offset, length))
    except (ValueError, TypeError, RecursionError) as error:
        raise Rejected(f"the body ({len(body)} bytes) has no readable reference; it was left as it is") from error
    if not (whole and isinstance(topic, str) and isinstance(digest, str)):
        raise Rejected(f"the body ({len(body)} bytes) has no readable reference; it was left as it is")
    return Reference(topic, partition, offset, length, digest), plain
