"""Retry headers <-> `RetryState`.

Invariants: `read(write(h, state)) == state` for every state within its bounds; `read` never raises, whatever the
bytes; `write` leaves other headers as they are and in order, writes each of ours at most once and keeps ours within
`MAX_TOTAL_BYTES`, so that headers cannot grow from hop to hop.

Nothing read here is trusted to raise a limit. What is broken counts as absent, a count that is too large stays large
(clamped), and each such finding is told in `RetryState.oddities`. A writer to the topic can always leave headers
out, and so start a message anew: the record in the delay store (the greater of both counts holds) and `signature`
are the answers to that.

When none of our own headers is present, Spring's, SmallRye's or Pulsar's are read instead (`foreign`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

from retry_topic.headers.foreign import read_foreign
from retry_topic.headers.names import FIELDS, HEADER_NAMES, MAX_TOTAL_BYTES, Field
from retry_topic.headers.state import RetryState
from retry_topic.headers.values import cut, decode, encode
from retry_topic.message import Headers

_ROWS = tuple((name, field.header, field) for name, field in FIELDS.items())
_values_of = attrgetter(*FIELDS)
_MESSAGE = FIELDS["error_message"].header
_SHORT = 250  # bytes; longer values are not worth remembering
AMPLE = MAX_TOTAL_BYTES - 1_400
"""Bytes of values that may be kept where some are stated anew: our names and those come to less than the rest."""

_Reading = Callable[[bytes], tuple[Any, str | None]]


def _reading(field: Field) -> tuple[_Reading, _Reading]:
    """How a short value of this field is read, and a long one; messages fail in herds and say much the same."""
    plain = partial(decode, field)
    return (lru_cache(maxsize=1024)(plain) if field.shared else plain), plain


_READERS = {header: (name, *_reading(field)) for name, header, field in _ROWS}


def read(headers: Headers) -> RetryState:
    """The retry state that `headers` tell of; an empty one when they tell of none."""
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
            # Broken: the age must not start anew, and the message's own time is never later than its first failure.
            values["first_failed_ms"] = values.get("original_timestamp_ms")
        values = {name: value for name, value in values.items() if value is not None}
    return RetryState(**values, oddities=tuple(oddities), dialect="own")


def write(message_headers: Headers, state: RetryState) -> Headers:
    """`message_headers` with `state` in place of any retry headers of ours.

    A label that cannot be written (over 250 bytes, not printable) is left out; numbers are clamped into their
    bounds; the error's message is cut further when everything together is too long.
    """
    encoded: dict[str, bytes] = {}
    size = 0
    for (_, header, field), value in zip(_ROWS, _values_of(state), strict=True):
        if value is None or value == ():
            continue
        data = encode(field, value)
        if data is not None:
            encoded[header] = data
            size += len(header) + len(data)
    if size > MAX_TOTAL_BYTES:  # the rest at its bounds always fits
        message = encoded.get(_MESSAGE, b"")
        encoded[_MESSAGE] = cut(message.decode(), max(0, len(message) - size + MAX_TOTAL_BYTES)).encode()
    others = [pair for pair in message_headers if pair[0] not in HEADER_NAMES]
    return (*others, *encoded.items())


class Restating:
    """Tells some fields anew, as `write` would, in the headers that a state was read from; what stays keeps its bytes.

    Args:
        shared: fields whose values many messages have in common.
        own: fields whose values are a message's own.
    """

    def __init__(self, shared: Sequence[str], own: Sequence[str]) -> None:
        self._names = (*shared, *own)
        self._replaced = frozenset(FIELDS[name].header for name in self._names)
        self._own = tuple(FIELDS[name] for name in own)
        fields = tuple(FIELDS[name] for name in shared)
        self._pairs_of = lru_cache(maxsize=4096)(lambda values: tuple(_pairs(fields, values)))

    def __call__(self, headers: Headers, state: RetryState, shared: tuple[Any, ...], own: tuple[Any, ...]) -> Headers:
        """`headers` with these values of the fields, None: nothing."""
        replaced = self._replaced
        kept = [pair for pair in headers if pair[0] not in replaced]
        if state.dialect != "own" or state.oddities or sum([len(data) for _, data in kept]) > AMPLE:
            return write(headers, replace(state, **dict(zip(self._names, shared + own, strict=True))))
        return (*kept, *self._pairs_of(shared), *_pairs(self._own, own))


def _pairs(fields: Sequence[Field], values: Sequence[Any]) -> list[tuple[str, bytes]]:
    pairs = []
    for field, value in zip(fields, values, strict=True):
        if value is not None and (data := encode(field, value)) is not None:
            pairs.append((field.header, data))
    return pairs
