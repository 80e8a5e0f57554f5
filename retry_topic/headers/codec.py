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

from typing import Any

from retry_topic.headers.foreign import read_foreign
from retry_topic.headers.names import FIELDS, HEADER_NAMES, MAX_TOTAL_BYTES
from retry_topic.headers.state import RetryState
from retry_topic.headers.values import cut, decode, encode
from retry_topic.message import Headers


def read(headers: Headers) -> RetryState:
    """The retry state that `headers` tell of; an empty one when they tell of none."""
    last = dict(headers)  # the last of equal names wins
    if HEADER_NAMES.isdisjoint(last):
        return read_foreign(last)
    values: dict[str, Any] = {}
    oddities: list[str] = []
    for name, field in FIELDS.items():
        data = last.get(field.header)
        if data is None:
            continue
        value, oddity = decode(field, data)
        if value is not None:
            values[name] = value
        if oddity:
            oddities.append(f"{field.header}: {oddity}")
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
    for name, field in FIELDS.items():
        value = getattr(state, name)
        data = None if value is None else encode(field, value)
        if data is not None:
            encoded[name] = data
    _cut_message(encoded)
    others = tuple(pair for pair in message_headers if pair[0] not in HEADER_NAMES)
    return others + tuple((FIELDS[name].header, data) for name, data in encoded.items())


def _cut_message(encoded: dict[str, bytes]) -> None:
    """Cut the error's message by what everything together has too much; the rest at its bounds always fits."""
    excess = sum(len(FIELDS[name].header) + len(data) for name, data in encoded.items()) - MAX_TOTAL_BYTES
    message = encoded.get("error_message", b"")
    if excess > 0:
        encoded["error_message"] = cut(message.decode(), max(0, len(message) - excess)).encode()
