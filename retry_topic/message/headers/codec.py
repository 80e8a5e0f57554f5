"""Converts retry headers to a `RetryState` and back, and changes the headers of messages that are sent or stored.

Invariants: `read(write(h, state)) == state` for every state within its bounds. `read` never raises, whatever the bytes.
`write` keeps all other headers, in order, writes each of ours at most once, and keeps ours within `MAX_TOTAL_BYTES`, so
that headers do not grow from attempt to attempt. Three headers have bounds of their own: the trace step, the traceback
and the failed attempts. `lighter` removes the last two from a message that is too large.

No header can raise a limit. A broken value counts as absent, and a count that is too large counts as its bound;
`RetryState.oddities` names each such fault. A client that can write to the topic can leave headers out, and so
restart a count. Two things prevent that: the store's own count (the greater count is used), and `signature`.

When a message has none of our headers, those of Spring, SmallRye or Pulsar are read instead (`foreign`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

from retry_topic.message.headers.foreign import read_foreign
from retry_topic.message.headers.state import (
    FAILED_ATTEMPTS,
    FIELDS,
    HEADER_NAMES,
    MAX_TOTAL_BYTES,
    TRACEBACK,
    Field,
    RetryState,
    cut,
    decode,
    encode,
)
from retry_topic.message.message import Headers, Message
from wheel_sched.errors import Rejected

_PARTITION = FIELDS["original_partition"].header
_TIMESTAMP = FIELDS["original_timestamp_ms"].header
_DIGITS = 15  # of the last millisecond that calendars have
_ROWS = tuple((name, field.header, field) for name, field in FIELDS.items())
_values_of = attrgetter(*FIELDS)
_MESSAGE = FIELDS["error_message"].header
_SHORT = 250  # bytes; the decoding of longer values is not cached
AMPLE = MAX_TOTAL_BYTES - 1_500
"""`HeaderRewriter` keeps values up to this many bytes: all our names and the new values need less than the rest."""

_Reading = Callable[[bytes], tuple[Any, str | None]]


def _reading(field: Field) -> tuple[_Reading, _Reading]:
    """Two decoders of a field: for short and for long values. The first has a cache if many messages share a value."""
    plain = partial(decode, field)
    return (lru_cache(maxsize=1024)(plain) if field.shared else plain), plain


_READERS = {header: (name, *_reading(field)) for name, header, field in _ROWS}


def read(headers: Headers) -> RetryState:
    """The retry state in `headers`; an empty state when there are no retry headers."""
    values: dict[str, Any] = {}
    oddities: list[str] = []
    for header, data in headers:
        reader = _READERS.get(header)
        if reader is None:
            continue
        name, short, long = reader
        value, oddity = short(data) if len(data) <= _SHORT else long(data)
        if name in values:
            oddities.append(f"{header}: is there twice, the last counts")
        values[name] = value
        if oddity:
            oddities.append(f"{header}: {oddity}")
    if not values:
        return read_foreign(dict(headers))
    if oddities:
        if values.get("first_failed_ms", 0) is None:
            # The value is broken. The age must not restart; the message's own time is not later than its first failure.
            values["first_failed_ms"] = values.get("original_timestamp_ms")
        values = {name: value for name, value in values.items() if value is not None}
    return RetryState(**values, oddities=tuple(oddities), dialect="own")


def write(message_headers: Headers, state: RetryState) -> Headers:
    """`message_headers` with the headers of `state` in place of all our earlier ones.

    A label that cannot be written (too long, not printable) is left out. A number outside its bounds becomes the
    nearest bound. The error's message is cut further when all headers together are too long.
    """
    encoded: dict[str, bytes] = {}
    size = 0
    for (_, header, field), value in zip(_ROWS, _values_of(state), strict=True):
        if value is None or value == ():
            continue
        data = encode(field, value)
        if data is not None:
            encoded[header] = data
            size += 0 if field.extra else len(header) + len(data)
    if size > MAX_TOTAL_BYTES:  # all others at their bounds always fit
        message = encoded.get(_MESSAGE, b"")
        encoded[_MESSAGE] = cut(message.decode(), max(0, len(message) - size + MAX_TOTAL_BYTES)).encode()
    others = [pair for pair in message_headers if pair[0] not in HEADER_NAMES]
    return (*others, *encoded.items())


class HeaderRewriter:
    """Does what `write` does when only a few fields change: it replaces their values and keeps all other headers.

    Args:
        shared: fields whose values are the same in many messages.
        own: fields whose values differ from message to message.
    """

    def __init__(self, shared: Sequence[str], own: Sequence[str]) -> None:
        self._names = (*shared, *own)
        self._replaced = frozenset(FIELDS[name].header for name in self._names)
        self._own = tuple(FIELDS[name] for name in own)
        fields = tuple(FIELDS[name] for name in shared)
        self._pairs_of = lru_cache(maxsize=4096)(lambda values: tuple(_pairs(fields, values)))

    def __call__(self, headers: Headers, state: RetryState, shared: tuple[Any, ...], own: tuple[Any, ...]) -> Headers:
        """`headers` with new values of this rewriter's fields.

        Args:
            headers: the headers of a message.
            state: the state that was read from `headers`.
            shared: the new values of the fields `shared`, in their order. None: the field gets no header.
            own: the new values of the fields `own`, in the same form.
        """
        replaced = self._replaced
        kept = [pair for pair in headers if pair[0] not in replaced]
        if (
            state.dialect != "own"
            or state.oddities
            or sum([len(data) for name, data in kept if name != TRACEBACK]) > AMPLE
        ):
            return write(headers, replace(state, **dict(zip(self._names, shared + own, strict=True))))
        return (*kept, *self._pairs_of(shared), *_pairs(self._own, own))


def _pairs(fields: Sequence[Field], values: Sequence[Any]) -> list[tuple[str, bytes]]:
    pairs = []
    for field, value in zip(fields, values, strict=True):
        if value is not None and (data := encode(field, value)) is not None:
            pairs.append((field.header, data))
    return pairs


def published(message: Message, message_id: str, now_ms: int | None = None) -> Message:
    """`message` with its id as a header. A delayed message also gets its publishing time and its topic as headers.

    So the handler sees the same id at every delivery, whether the message comes from its topic or from the store.

    Args:
        message: the message that is sent, or stored until it is due.
        message_id: the id of the message.
        now_ms: the publishing time of a delayed message, by the store's clock. It distinguishes two messages that get
            the same id one after the other. Defaults to None: the message is sent immediately.

    Raises:
        Rejected: the id cannot be written as a header; nothing was sent.
    """
    name = encode(FIELDS["id"], message_id)
    if name is None:
        raise Rejected(
            f"expected an id of at most {FIELDS['id'].max_bytes} printable bytes, got: {message_id!r:.100}; "
            "nothing was sent"
        )
    ours = [(FIELDS["id"].header, name)]
    if now_ms is not None:
        ours.append((FIELDS["published_ms"].header, b"%d" % now_ms))
        topic = encode(FIELDS["original_topic"], message.topic) if message.topic else None
        if topic is not None:  # identifies copies of these headers on a message of another topic
            ours.append((FIELDS["original_topic"].header, topic))
    return message.to(message.topic, (*without_ours(message.headers), *ours))


def without_ours(headers: Headers) -> Headers:
    """The headers of a message without our retry headers, which a handler may have copied from another message."""
    return tuple(pair for pair in headers if pair[0] not in HEADER_NAMES)


def lighter(message: Message) -> Message | None:
    """`message` without its largest header that no decision needs: first without its traceback, then without its failed
    attempts. None if it has neither.

    Use it for a message that is too large. No signature covers these two headers.
    """
    names = {name for name, _ in message.headers}
    for header in (TRACEBACK, FAILED_ATTEMPTS):
        if header in names:
            return replace(message, headers=tuple(pair for pair in message.headers if pair[0] != header))
    return None


def of_another_group(message: Message, group: str) -> bool:
    """Whether `message` is another group's retry on a topic that `group` reads as well.

    `group` has already received the original there and may skip the retry. A message that only carries copied headers
    (a handler published it to another topic, say) is not such a retry. The answer is only as reliable as headers: every
    client that can write to the topic can write them.

    Args:
        message: as delivered.
        group: the group that received it.
    """
    state = read(message.headers)
    return (
        state.dialect == "own"
        and state.attempt > 0
        and state.original_topic == message.topic
        and state.consumer_group not in (None, group)
    )


def return_to_origin(message: Message) -> Message:
    """A failed message with the partition and the timestamp of its original record, taken from its headers.

    Use it for messages that leave the delay store or go to a dead topic. The headers of any other message may be copies
    that a handler made from another message. Without a partition in the headers, the key decides the partition. Without
    a timestamp, the time of publishing is used.

    Source: Spring Kafka's `DeadLetterPublishingRecoverer`, which also keeps the partition.
    """
    found = dict(message.headers)
    partition, timestamp = found.get(_PARTITION), found.get(_TIMESTAMP)
    if partition is None and timestamp is None:
        return message
    value, key, headers = message.value, message.key, message.headers
    at_ms = _number(timestamp)
    return Message(message.topic, value, key, headers, None, message.reference, _number(partition), at_ms)


def _number(data: bytes | None) -> int | None:
    return int(data) if data is not None and data.isdigit() and len(data) <= _DIGITS else None
