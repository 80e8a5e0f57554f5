"""Converts messages to Kafka records and back, byte for byte.

Kafka has null values; messages have none. A record without a value (a tombstone) is read as an empty value with the
header `kafka-tombstone`. When it is produced, it becomes a tombstone again. Header names are C strings in librdkafka.
So a name that contains a NUL, is not text, or starts like an escaped name is sent percent-encoded after `%:`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from retry_topic.message import Headers, Message, Source

TOMBSTONE = "kafka-tombstone"
_ESCAPED = "%:"
_MAX_KNOWN = 1_000
_known: set[str] = set()  # names that need no decoding; the same names occur in every message


def to_record(message: Message) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    """The value (None for a tombstone) and the headers with which Kafka stores a message."""
    headers = [(_escape(name), content) for name, content in message.headers]
    if not message.value and any(name == TOMBSTONE for name, _ in headers):
        return None, [pair for pair in headers if pair[0] != TOMBSTONE]
    return message.value, headers


def from_record(record: Any) -> Message:
    """The message in a record of confluent-kafka."""
    kind, at_ms = record.timestamp()
    topic, value, pairs = record.topic(), record.value(), record.headers()
    source = Source(topic, record.partition(), str(record.offset()), at_ms if kind else None)
    if value is None:
        return from_parts(source, record.key(), None, pairs)
    return Message(topic, value, record.key(), _headers(pairs) if pairs else (), source)  # the usual case


def from_parts(
    source: Source, key: bytes | None, value: bytes | None, pairs: Sequence[tuple[str, bytes | None]] | None
) -> Message:
    """The message in the parts of a record that was read at `source`."""
    headers = _headers(pairs or ())
    if value is None:
        value, headers = b"", (*headers, (TOMBSTONE, b"1"))
    return Message(source.topic, value, key, headers, source)


def _headers(pairs: Sequence[tuple[str, bytes | None]]) -> Headers:
    for name, content in pairs:
        if name not in _known or content is None:
            break
    else:
        return tuple(pairs)  # type: ignore[arg-type]  # the usual case
    if len(_known) < _MAX_KNOWN:
        _known.update(name for name, _ in pairs if not name.startswith(_ESCAPED))
    return tuple([(_plain(name), content or b"") for name, content in pairs])


@lru_cache(maxsize=1024)
def _escape(name: str) -> str:
    if "\0" in name or name.startswith(_ESCAPED) or not _is_text(name):
        return _ESCAPED + quote_from_bytes(name.encode("utf-8", "surrogateescape"))
    return name


def _plain(name: str) -> str:
    if name.startswith(_ESCAPED):
        return unquote_to_bytes(name.removeprefix(_ESCAPED)).decode("utf-8", "surrogateescape")
    return name


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
