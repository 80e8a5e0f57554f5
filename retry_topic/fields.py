"""Messages as flat lists of fields and values, and back: pure functions, byte for byte.

This is what a stream entry holds, and what waits in the delay store for any broker.

| message | field |
|---|---|
| `value` | `value` |
| `key`, unless None | `key` |
| header `name` | `name`; `h:name` when the name is `value` or `key` or starts with `h:` |

The order of headers is kept and names may repeat, so it is a flat list, never a mapping.
Entries of other producers are read too: without a `value` the payload is empty, a second `value` or `key` is a header
of that name, and a field name that is no UTF-8 survives in surrogate escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from retry_topic.message import Headers, Message, Source

VALUE = b"value"
KEY = b"key"
ESCAPE = b"h:"


def to_fields(message: Message) -> list[bytes]:
    """What follows the id in `XADD`: field, value, field, value, ... A script may XADD this list as it is.

    Raises:
        UnicodeEncodeError: a header's name is no text (an unpaired surrogate).
    """
    fields = [VALUE, message.value]
    if message.key is not None:
        fields += (KEY, message.key)
    for name, content in message.headers:
        fields += (field_of(name), content)
    return fields


@lru_cache(maxsize=1024)
def field_of(name: str) -> bytes:
    """The field of a header; names repeat from message to message."""
    field = name.encode("utf-8", "surrogateescape")
    return ESCAPE + field if field in (VALUE, KEY) or field.startswith(ESCAPE) else field


def from_fields(topic: str, fields: Sequence[bytes], source: Source | None = None) -> Message:
    """The message in a flat list of fields and values."""
    names = fields[2::2]
    if fields and fields[0] == VALUE and KEY not in names[1:]:  # as `to_fields` writes it
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
    """The header's name; names repeat from message to message."""
    return field.removeprefix(ESCAPE).decode("utf-8", "surrogateescape")


def from_entry(topic: str, entry_id: bytes, fields: Sequence[bytes]) -> Message:
    """The message in the entry `entry_id` of `topic`."""
    offset = entry_id.decode()
    return from_fields(topic, fields, Source(topic, 0, offset, int(offset.partition("-")[0])))
