"""Items: the values that a caller stores and finds, the same for every implementation.

An item has an id, a due time and a body. Its topic is the name for counting, pausing and listing. Its route chooses the
shard. Its refs are names for finding it. An item is in exactly one state at a time:

    schedule ─► due ─► leased ─► (gone)       due     waiting for its time
                 ▲      │ └────► dead         leased  claimed, not settled
                 │      ▼                     held    until somebody releases it or its topic
                held ◄──┘                     dead    given up, kept for people

Times are integer milliseconds since 1970 by the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal, NamedTuple

from wheel_sched.errors import Rejected, StoreError

MAX_BATCH = 500  # items in one script call: more gains little and blocks the server for over 1.3 ms
MAX_ID_BYTES = 512
MAX_BODY_BYTES = 16 * 1024 * 1024
_MAX_NAME = 249  # characters of a topic or ref
MAX_DUE_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z; also far below 2**53, the last exact ZSET score
INSTRUCTION = "wheel:"  # a ref that starts with it says how a room handles its item
NO_LEASE_END_MS = MAX_DUE_MS  # the lease end of a claim that only the owner of the shard ends

State = Literal["due", "leased", "held", "dead"]
STATES: tuple[State, ...] = ("due", "leased", "held", "dead")


class Outcome(StrEnum):
    """What a call did to one item, or why it did nothing."""

    STORED = "s"
    HELD = "h"
    DUPLICATE = "d"
    DONE = "o"
    STALE = "t"
    CANCELLED = "c"
    ABSENT = "a"
    IN_FLIGHT = "f"
    OTHER_VERSION = "v"
    WRONG_STATE = "w"
    SUPERSEDED = "x"  # not stored: another item of its key goes out instead
    REPLACED = "r"  # stored instead of the item that waited under its key


@dataclass(slots=True)
class Item:
    """An item to store.

    Args:
        id: unique within the namespace, 1 to 512 bytes of UTF-8.
        due_ms: from when the item may be released. An item with a due time in the past is due at once. None: the item
            is held until a caller gives it a due time or releases it.
        body: opaque bytes, at most 16 MiB.
        topic: the name under which the item is counted, paused and listed. Defaults to "".
        refs: names for finding the item (see `DelayStore.find`), or that a capability reads. Defaults to none.
        route: the text that chooses the shard. Defaults to the id.

    Raises:
        Rejected: raised by `check`, with the wrong field and its limits.
    """

    id: str
    due_ms: int | None
    body: bytes
    topic: str = ""
    refs: tuple[str, ...] = ()
    route: str | None = None

    def check(self) -> None:
        due_ms, topic, body, route, refs = self.due_ms, self.topic, self.body, self.route, self.refs
        if (
            type(self.id) is type(topic) is str
            and self.id.isascii()
            and 0 < len(self.id) <= MAX_ID_BYTES
            and type(due_ms) is int
            and 0 <= due_ms <= MAX_DUE_MS
            and type(body) is bytes
            and len(body) <= MAX_BODY_BYTES
            and topic.isprintable()
            and topic.isascii()
            and len(topic) <= _MAX_NAME
            and (route is None or (type(route) is str and route.isascii() and len(route) <= MAX_ID_BYTES))
            and (not refs or all(map(_is_plain_ref, refs)))
        ):
            return  # the usual case; the checks below accept unusual values and refuse wrong ones
        check_id(self.id)
        check_due(self.due_ms, self.id)
        if not isinstance(self.body, bytes):
            raise Rejected(f"item {_short(self.id)}: expected body to be bytes, got: {type(self.body).__name__}")
        if len(self.body) > MAX_BODY_BYTES:
            raise Rejected(
                f"item {_short(self.id)}: the body has {len(self.body)} bytes, the limit is {MAX_BODY_BYTES}"
            )
        check_name(self.topic, "topic")
        for ref in self.refs:
            check_name(ref, "ref")
            if not ref:
                raise Rejected(f"item {_short(self.id)}: a ref must be one non-empty line, got: {ref!r}")
        if self.route is not None:
            _check_text(self.route, "a route")


def check_id(item_id: str) -> None:
    """Raise `Rejected` unless `item_id` can be an id."""
    if type(item_id) is str and item_id.isascii() and 0 < len(item_id) <= MAX_ID_BYTES:
        return  # the usual case
    if not item_id:
        raise Rejected(f"expected an id to be a non-empty text, got: {item_id!r}; nothing was stored")
    _check_text(item_id, "an id")


def _check_text(text: str, what: str) -> None:
    if not _is(text, str):
        raise Rejected(f"expected {what} to be text, got: {quoted(text)}; nothing was stored")
    if len(text) > MAX_ID_BYTES or (not text.isascii() and len(_encoded(text, what)) > MAX_ID_BYTES):
        raise Rejected(f"expected {what} of at most {MAX_ID_BYTES} bytes, got: {_short(text)!r}; nothing was stored")


def _encoded(text: str, what: str) -> bytes:
    try:
        return encode_text(text)
    except UnicodeEncodeError as error:  # a lone surrogate that escapes no byte
        raise Rejected(f"expected {what} that can be written in UTF-8, got: {_short(text)!r}") from error


def check_due(due_ms: int | None, item_id: str) -> None:
    """Raise `Rejected` unless `due_ms` is None or a time from 1970 to the year 9999."""
    if due_ms is None:
        return
    if isinstance(due_ms, bool) or not isinstance(due_ms, int):
        raise Rejected(f"item {_short(item_id)}: expected due_ms to be whole milliseconds, got: {due_ms!r}")
    if not 0 <= due_ms <= MAX_DUE_MS:
        raise Rejected(
            f"item {_short(item_id)}: due_ms must lie between 1970 and the year 9999 (0 to {MAX_DUE_MS}), "
            f"got: {due_ms}; nothing was stored"
        )


def check_name(name: str, what: str) -> None:
    """Raise `Rejected` unless `name` can be a topic or ref."""
    if not _is(name, str) or len(name) > _MAX_NAME or "\n" in name or "\0" in name:
        raise Rejected(f"expected a {what} to be one line of at most 249 characters, got: {_short(str(name))!r}")
    if not name.isascii():
        _encoded(name, f"a {what}")


def _is_plain_ref(ref: str) -> bool:
    return type(ref) is str and ref.isascii() and ref.isprintable() and 0 < len(ref) <= _MAX_NAME


def _is(value: object, kind: type) -> bool:
    """`isinstance`, hidden from the type checker, which would call the test needless. Callers may pass wrong types."""
    return isinstance(value, kind)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}... ({len(text)} characters)"


def quoted(value: object) -> str:
    """The `repr` of a value for an error text. A long text is cut."""
    try:
        return _short(repr(value))
    except Exception:  # an integer of over 4,300 digits, or a __repr__ that raises
        return f"a value of type {type(value).__name__} that cannot be shown"


@dataclass(slots=True)
class Found:
    """A stored item. `score_ms` is its due time (0: none), lease deadline or time of death, depending on `state`."""

    id: str
    state: State
    score_ms: int
    version: int
    topic: str
    body: bytes
    reason: str = ""
    refs: tuple[str, ...] = ()
    route: str | None = None
    shard: int = 0

    def item(self) -> Item:
        """The stored item as an `Item`, to store it elsewhere. It has a due time only if its state is "due"."""
        due_ms = self.score_ms if self.state == "due" else None
        return Item(self.id, due_ms, self.body, self.topic, self.refs, self.route)


@dataclass(frozen=True, slots=True)
class Marker:
    """The marker of a shard (an entry that wakes dispatchers): its id, and from when there may be something to claim.

    `due_ms` is None when the due time is unknown.
    """

    id: bytes
    due_ms: int | None


class Record(NamedTuple):
    """A parsed record. A record is the bytes of an item in the store, with a version and the lengths of its parts.

        1:<version>:<length of topic>:<of route>:<of refs>:<topic><route><refs, one per line><body>

    The version is the sequence number of the write in its shard. The client makes the *tail*: everything behind the
    version. The server puts the version in front of it. The lengths are decimal numbers, because every Lua can read
    them without `struct`, also the Lua of test doubles.
    """

    version: int
    topic: str
    route: str | None
    refs: tuple[str, ...]
    body: bytes


def encode_text(text: str) -> bytes:
    """Encode an id, a topic or a ref as UTF-8. Surrogate escapes in the text become the bytes that they stand for."""
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
    """Parse a record.

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
        raise StoreError(f"unreadable record ({len(raw)} bytes, starts {raw[:24]!r}); nothing was changed") from error
