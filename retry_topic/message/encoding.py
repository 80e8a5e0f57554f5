"""A message as the fields of a stream entry, and as the body of an item in the delay store. Pure functions; no byte is
lost.

**Stream encoding**: a flat list of fields and values.

| message | field |
|---|---|
| `value` | `value` |
| `key`, unless it is None | `key` |
| header `name` | `name`; `h:name` when the name is `value` or `key`, or begins with `h:` |

A name that begins with `store-note:` is written as `h:name`, too.

The encoding is a list and not a mapping, because headers keep their order and a name may occur twice. Entries of other
producers can be read as well. An entry without `value` has an empty payload. A second `value` or `key` becomes a header
of that name. A field name that is not UTF-8 is kept in surrogate escapes.

**Body**: the same fields and values in push form, with the topic as their target. The store's server itself can push
such a body to a stream. For every other broker a publisher decodes the body and publishes the message.

A message by reference has its payload elsewhere. A line before its push form says where:

    R1["<topic>",<partition>,<offset>,<length>,"<digest>"]\n<push form with an empty value>

No server pushes such a body. An older version of this package, which does not know this line, holds the item for an
operator; it does not send the message without its payload.

The header `retry-traceback` is the *note* of a body (see `push_form`): the store keeps it with the item, and it is not
sent when the message is due.

A body contains no partition and no timestamp. A failed message has both in its headers, and `headers.return_to_origin`
restores them. For any other message, its key decides the partition, and the timestamp is the time of publishing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import lru_cache

from retry_topic.message import Headers, Message, Reference, Source
from retry_topic.message.headers.state import TRACEBACK
from wheel_sched.errors import Rejected
from wheel_sched.store import decode_push, encode_push
from wheel_sched.store.push.push_form import NOTE, split_note

VALUE = b"value"
KEY = b"key"
ESCAPE = b"h:"
TRACEBACK_NOTE = NOTE + TRACEBACK.encode()
"""The field of a body that holds the traceback; always the last one."""
_REFERENCE = b"R1"


def to_fields(message: Message) -> list[bytes]:
    """The arguments of `XADD` after the id: field, value, field, value, ... A script may pass the list on unchanged.

    Raises:
        UnicodeEncodeError: the name of a header is not text (it has an unpaired surrogate).
    """
    fields = [VALUE, message.value]
    if message.key is not None:
        fields += (KEY, message.key)
    for name, content in message.headers:
        fields += (field_of(name), content)
    return fields


@lru_cache(maxsize=1024)
def field_of(name: str) -> bytes:
    """The field for a header of this name. It is cached, because the same names occur in every message."""
    field = name.encode("utf-8", "surrogateescape")
    return ESCAPE + field if field in (VALUE, KEY) or field.startswith((ESCAPE, NOTE)) else field


def from_fields(topic: str, fields: Sequence[bytes], source: Source | None = None) -> Message:
    """The message that a flat list of fields and values holds."""
    names = fields[2::2]
    if fields and fields[0] == VALUE and KEY not in names[1:]:  # the form that `to_fields` writes
        if names and names[0] == KEY:
            return Message(topic, fields[1], fields[3], _headers(names[1:], fields[5::2]), source)
        return Message(topic, fields[1], None, _headers(names, fields[3::2]), source)
    value: bytes | None = None
    key: bytes | None = None
    headers: list[tuple[str, bytes]] = []
    for field, content in zip(fields[::2], fields[1::2], strict=True):
        if field == VALUE and value is None:
            value = content
        elif field == KEY and key is None:
            key = content
        else:
            headers.append((_name(field), content))
    return Message(topic, b"" if value is None else value, key, tuple(headers), source)


def _headers(names: Sequence[bytes], contents: Sequence[bytes]) -> Headers:
    return tuple(zip(map(_name, names), contents, strict=True)) if names else ()


@lru_cache(maxsize=1024)
def _name(field: bytes) -> str:
    """The name of the header that a field holds. It is cached, because the same names occur in every message."""
    return field.removeprefix(ESCAPE).decode("utf-8", "surrogateescape")


def from_entry(topic: str, entry_id: bytes, fields: Sequence[bytes]) -> Message:
    """The message that the stream entry `entry_id` of `topic` holds."""
    offset = entry_id.decode()
    return from_fields(topic, fields, Source(topic, 0, offset, int(offset.partition("-")[0])))


def encode_body(message: Message) -> bytes:
    """The body of an item from which `message` is sent to its topic when the item is due.

    Raises:
        Rejected: the message has no topic, too many headers, a name that is not text, or its own partition or time.
    """
    if message.partition is not None or message.timestamp_ms is not None:
        raise Rejected(
            "expected a message for later to leave partition and timestamp_ms to its topic, got: "
            f"{message.partition} and {message.timestamp_ms}; nothing was stored"
        )
    try:
        body = encode_push("S", message.topic, _stored_fields(message))
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
        Rejected: the body is not in push form, its reference cannot be read, or its target is a Redis list.
    """
    reference, plain = split_reference(body)
    form = decode_push(plain)
    if form.kind != "S":
        raise Rejected(f"the body ({len(body)} bytes) is for a list and holds no message; nothing was changed")
    pieces, note = split_note(form)
    message = from_fields(form.target, pieces)
    if note is not None:
        message = message.to(message.topic, (*message.headers, (_name(note[0]), note[1])))
    return message if reference is None else replace(message, reference=reference)


def _stored_fields(message: Message) -> list[bytes]:
    """The fields and values of a body: those of `to_fields`, but the traceback comes last, as the body's note.

    A note is a field that the store keeps with the item and does not send, see `split_note`.
    """
    traceback = message.header(TRACEBACK)
    if traceback is None:
        return to_fields(message)
    others = tuple(pair for pair in message.headers if pair[0] != TRACEBACK)
    return [*to_fields(message.to(message.topic, others)), TRACEBACK_NOTE, traceback]


def split_reference(body: bytes) -> tuple[Reference | None, bytes]:
    """The reference in front of a body (None if the body holds its payload), and the push form behind it.

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
        raise Rejected(f"the body ({len(body)} bytes) has no readable reference; nothing was changed") from error
    if not (whole and isinstance(topic, str) and isinstance(digest, str)):
        raise Rejected(f"the body ({len(body)} bytes) has no readable reference; nothing was changed")
    return Reference(topic, partition, offset, length, digest), plain
