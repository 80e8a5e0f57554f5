"""The record: the bytes of an item in the store, with a version and the lengths of its parts.

    1:<version>:<length of topic>:<of route>:<of refs>:<topic><route><refs, one per line><body>

The version is the sequence number of the write in its shard. The client makes the *tail*: everything behind the
version. The server puts the version in front of it. The lengths are decimal numbers, because every Lua can read them
without `struct`, also the Lua of test doubles.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from wheel_sched.errors import StoreError


class Record(NamedTuple):
    """A record taken apart."""

    version: int
    topic: str
    route: str | None
    refs: tuple[str, ...]
    body: bytes


def encode_text(text: str) -> bytes:
    """Encode an id, a topic or a ref as UTF-8. Surrogate escapes keep all other bytes."""
    return text.encode("utf-8", "surrogateescape")


def decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=1024)
def _plain_head(topic: str) -> bytes:
    raw = encode_text(topic)
    return b"%d:0:0:%s" % (len(raw), raw)


@lru_cache(maxsize=1024)
def _topic(raw: bytes) -> str:
    return decode_text(raw)


def make_tail(topic: str, route: str | None, refs: tuple[str, ...], body: bytes) -> bytes:
    """The tail of a record: everything behind its version."""
    if not refs and route is None:
        return _plain_head(topic) + body
    raw_topic, raw_route = encode_text(topic), encode_text(route or "")
    raw_refs = encode_text("\n".join(refs))
    head = b"%d:%d:%d:" % (len(raw_topic), len(raw_route), len(raw_refs))
    return b"".join((head, raw_topic, raw_route, raw_refs, body))


def read_record(raw: bytes) -> Record:
    """Take a record apart.

    Raises:
        StoreError: the bytes are not a record of this schema; nothing was changed.
    """
    try:
        mark, version, topic_len, route_len, refs_len, rest = raw.split(b":", 5)
        if mark != b"1":
            raise ValueError(mark)
        end = int(topic_len)
        topic = _topic(rest[:end])
        if route_len == b"0" and refs_len == b"0":
            return Record(int(version), topic, None, (), rest[end:])
        route_end = end + int(route_len)
        refs_end = route_end + int(refs_len)
        route = decode_text(rest[end:route_end]) or None
        refs = tuple(decode_text(rest[route_end:refs_end]).split("\n")) if refs_end > route_end else ()
        return Record(int(version), topic, route, refs, rest[refs_end:])
    except ValueError as error:
        raise StoreError(f"unreadable record ({len(raw)} bytes, starts {raw[:24]!r}); it was left as it is") from error
