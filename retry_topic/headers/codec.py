"""Retry headers <-> `RetryState`.

Invariants: `read(write(h, state)) == state` for every state within its bounds; `read` never raises, whatever the
bytes; `write` leaves other headers as they are and in order, writes each of ours at most once and keeps ours within
`MAX_TOTAL_BYTES`, so that headers cannot grow from hop to hop. `restate` is `write` for a state that was read from
these very headers and differs in a few fields: what stays keeps its bytes.

Nothing read here is trusted to raise a limit. What is broken counts as absent, a count that is too large stays large
(clamped), and each such finding is told in `RetryState.oddities`. A writer to the topic can always leave headers
out, and so start a message anew: the record in the delay store (the greater of both counts holds) and `signature`
are the answers to that.

When none of our own headers is present, Spring's, SmallRye's or Pulsar's are read instead (`foreign`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
_FIRST = FIELDS["first_failed_ms"].header
_SHORT = 250  # bytes; longer values are not worth remembering
_AMPLE = MAX_TOTAL_BYTES - 1_400  # our names, and the values that are stated anew, come to less than that

_Reading = Callable[[bytes], tuple[Any, str | None]]


def _reading(field: Field) -> tuple[_Reading, _Reading]:
    """How a short value of this field is read, and a long one; messages fail in herds and say much the same."""
    plain = partial(decode, field)
    return (lru_cache(maxsize=1024)(plain) if field.shared else plain), plain


_READERS = {header: (name, *_reading(field)) for name, header, field in _ROWS}


def read(headers: Headers) -> RetryState:
    """The retry state that `headers` tell of; an empty one when they tell of none."""
    last = dict(headers)  # the last of equal names wins
    values: dict[str, Any] = {}
    oddities: list[str] = []
    for header, data in last.items():
        reader = _READERS.get(header)
        if reader is None:
            continue
        name, short, long = reader
        value, oddity = short(data) if len(data) <= _SHORT else long(data)
        if value is not None:
            values[name] = value
        if oddity:
            oddities.append(f"{header}: {oddity}")
    if len(last) != len(headers) and (values or oddities):
        names = [header for header, _ in headers]
        oddities += [
            f"{header}: is there twice, the last counts"
            for header in last
            if header in _READERS and names.count(header) > 1
        ]
    if not values and not oddities and HEADER_NAMES.isdisjoint(last):
        return read_foreign(last)
    if _FIRST in last and values.get("first_failed_ms") is None:
        # Broken: the age must not start anew, and the message's own time is never later than its first failure.
        values["first_failed_ms"] = values.get("original_timestamp_ms")
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


def restate(headers: Headers, state: RetryState, told: Mapping[str, Any]) -> Headers:
    """`headers`, from which `state` was read, with what is `told` of some of its fields (None: nothing)."""
    replaced = _headers_of(tuple(told))
    kept = [pair for pair in headers if pair[0] not in replaced]
    if state.dialect != "own" or state.oddities or sum([len(data) for _, data in kept]) > _AMPLE:
        return write(headers, replace(state, **told))
    for name, value in told.items():
        if value is not None and (pair := _WRITERS[name](name, value)) is not None:
            kept.append(pair)
    return tuple(kept)


def _pair(name: str, value: Any) -> tuple[str, bytes] | None:
    field = FIELDS[name]
    data = encode(field, value)
    return None if data is None else (field.header, data)


_shared_pair = lru_cache(maxsize=4096)(_pair)
_WRITERS = {name: _shared_pair if field.shared else _pair for name, field in FIELDS.items()}


@lru_cache(maxsize=256)
def _headers_of(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(FIELDS[name].header for name in names)
