"""A message as a flat list of fields and values, and back. Pure functions; nothing is lost, byte for byte.

A stream entry holds such a list. The body of an item in the delay store holds one as well, for every broker.

| message | field |
|---|---|
| `value` | `value` |
| `key`, unless it is None | `key` |
| header `name` | `name`; `h:name` when the name is `value` or `key`, or begins with `h:` |

It is a list and not a mapping: headers keep their order, and a name may occur twice. Entries of other producers can be
read as well. An entry without `value` has an empty payload. A second `value` or `key` becomes a header of that name. A
field name that is not UTF-8 is kept in surrogate escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from retry_topic.message import Headers, Message, Source

VALUE = b"value"
KEY = b"key"
ESCAPE = b"h:"


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
    """The field of a header. It is cached, because the same names occur in every message."""
    field = name.encode("utf-8", "surrogateescape")
    return ESCAPE + field if field in (VALUE, KEY) or field.startswith(ESCAPE) else field


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
    """The header of a field. It is cached, because the same names occur in every message."""
    return field.removeprefix(ESCAPE).decode("utf-8", "surrogateescape")


def from_entry(topic: str, entry_id: bytes, fields: Sequence[bytes]) -> Message:
    """The message that the stream entry `entry_id` of `topic` holds."""
    offset = entry_id.decode()
    return from_fields(topic, fields, Source(topic, 0, offset, int(offset.partition("-")[0])))
