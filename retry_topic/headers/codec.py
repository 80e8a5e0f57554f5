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

from operator import attrgetter
from typing import Any

from retry_topic.headers.foreign import read_foreign
from retry_topic.headers.names import FIELDS, HEADER_NAMES, MAX_TOTAL_BYTES
from retry_topic.headers.state import RetryState
from retry_topic.headers.values import cut, decode, encode
from retry_topic.message import Headers

_ROWS = tuple((name, field.header, field) for name, field in FIELDS.items())
_values_of = attrgetter(*FIELDS)
_MESSAGE = FIELDS["error_message"].header


def read(headers: Headers) -> RetryState:
    """The retry state that `headers` tell of; an empty one when they tell of none."""
    last = dict(headers)  # the last of equal names wins
    if HEADER_NAMES.isdisjoint(last):
        return read_foreign(last)
    values: dict[str, Any] = {}
    oddities: list[str] = []
    for name, header, field in _ROWS:
        data = last.get(header)
        if data is None:
            continue
        value, oddity = decode(field, data)
        if value is not None:
            values[name] = value
        if oddity:
            oddities.append(f"{header}: {oddity}")
    if values.get("first_failed_ms") is None and FIELDS["first_failed_ms"].header in last:
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
