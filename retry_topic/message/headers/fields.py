"""The table of all documented retry headers, and functions that write and read each kind of value.

Numbers are decimal ASCII, times are epoch milliseconds, durations are milliseconds, text is UTF-8. The parents of an
error class are joined by commas. Bounds are bytes of the value. A *label* (an id, a topic, a group) that is too long is
left out, because half of it would name something else. *Prose* that is too long is cut.

Reading accepts any bytes and never raises: `decode` answers a value or None, and a text that says what was wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from retry_topic.message.headers.state import MAX_COUNT
from wheel_sched.duration import LONGEST_MS

MAX_VALUE_BYTES = 250  # a Kafka topic's name has at most 249
MAX_MRO_BYTES = 500
MAX_MESSAGE_BYTES = 1_000
MAX_TOTAL_BYTES = 3_072
"""The greatest sum of all our names and values. Without the error's message, all fields at their bounds need less than
this. So only the message is ever shortened, and an ordinary state keeps its full message."""

LAST_MS = 253_402_300_799_999  # the end of the year 9999, where calendars end
_MAX_PARTITION = 2**31 - 1
# Only a few decimal ASCII digits. int() alone accepts "1_0", blanks and digits of any script, and is slow on megabytes.
_INTEGER = re.compile(rb"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Field:
    """The header of one field of `RetryState`, and the bounds of its value.

    Args:
        header: the header's name.
        kind: `integer`, `label`, `prose` or `names`.
        low: the least integer.
        high: the greatest integer.
        clamp: True: a larger integer counts as `high`, as counts do: they must not be lowered. False: it is ignored.
        max_bytes: the most bytes that the value may have.
        choices: the legal labels. Defaults to none: any label.
        shared: whether many messages have the same value, so that its decoding is cached.
    """

    header: str
    kind: Literal["integer", "label", "prose", "names"]
    low: int = 0
    high: int = LAST_MS
    clamp: bool = False
    max_bytes: int = MAX_VALUE_BYTES
    choices: tuple[str, ...] = ()
    shared: bool = False


FIELDS: dict[str, Field] = {
    "id": Field("retry-id", "label"),
    "attempt": Field("retry-attempt", "integer", high=MAX_COUNT, clamp=True, shared=True),
    "max_attempts": Field("retry-max", "integer", low=1, high=MAX_COUNT, shared=True),
    "first_failed_ms": Field("retry-first-failed-at", "integer"),
    "last_failed_ms": Field("retry-last-failed-at", "integer"),
    "due_ms": Field("retry-due-at", "integer"),
    "started_ms": Field("retry-started-at", "integer"),
    "policy": Field("retry-policy", "label", shared=True),
    "delay_ms": Field("retry-delay", "integer", high=LONGEST_MS),
    "verdict": Field("retry-verdict", "label", choices=("retry", "dead"), shared=True),
    "retry_after_ms": Field("retry-after", "integer", high=LONGEST_MS, clamp=True),
    "original_topic": Field("retry-original-topic", "label", shared=True),
    "original_partition": Field("retry-original-partition", "integer", high=_MAX_PARTITION, shared=True),
    "original_offset": Field("retry-original-offset", "label"),
    "original_timestamp_ms": Field("retry-original-timestamp", "integer"),
    "consumer_group": Field("retry-consumer-group", "label", shared=True),
    "error_class": Field("retry-error-class", "prose", shared=True),
    "error_mro": Field("retry-error-mro", "names", max_bytes=MAX_MRO_BYTES, shared=True),
    "error_message": Field("retry-error-message", "prose", max_bytes=MAX_MESSAGE_BYTES, shared=True),
    "error_fingerprint": Field("retry-error-fingerprint", "label", shared=True),
    "error_status": Field("retry-error-status", "integer", low=100, high=599, shared=True),
    "replays": Field("retry-replays", "integer", high=MAX_COUNT, clamp=True, shared=True),
    "ordering": Field("retry-ordering", "label", max_bytes=29),
    "published_ms": Field("retry-published-at", "integer"),
    "signature": Field("retry-signature", "label"),
}
"""Each field of `RetryState` and its header, in the order in which headers are written."""

HEADER_NAMES = frozenset(field.header for field in FIELDS.values())


def decode(field: Field, data: bytes) -> tuple[Any, str | None]:
    """The value (None: the bytes hold none), and what was wrong with the bytes (None: nothing)."""
    if field.kind == "integer":
        if data.isdigit() and len(data) < 19 and field.low <= (value := int(data)) <= field.high:
            return value, None  # the usual case
        return _decode_integer(field, data)
    if field.kind == "label":
        return _decode_label(field, data)
    text = cut(data.decode(errors="replace"), field.max_bytes)
    odd = "cut to its bound" if len(data) > field.max_bytes else None
    if field.kind == "names":
        return cut_names(text.split(","), field.max_bytes), odd
    return text, odd


def encode(field: Field, value: Any) -> bytes | None:
    """The bytes of a value, within the bounds of its field; None when the value cannot be written."""
    if field.kind == "integer":
        return b"%d" % (value if field.low <= value <= field.high else min(max(value, field.low), field.high))
    if field.kind == "names":
        return ",".join(cut_names(value, field.max_bytes)).encode() or None
    if field.kind == "prose":
        return cut(value, field.max_bytes).encode()
    if value.isascii() and value.isprintable() and 0 < len(value) <= field.max_bytes and not field.choices:
        return bytes(value, "ascii")  # the usual case
    data: bytes = value.encode(errors="replace")
    return None if _decode_label(field, data)[1] else data


def clamp_integer(field: Field, value: int) -> tuple[int | None, str | None]:
    """The integer within its bounds or None, and what was wrong with it (None: nothing)."""
    if field.low <= value <= field.high:
        return value, None
    if value > field.high and field.clamp:
        return field.high, f"{value} clamped to {field.high}"
    return None, f"{value} is outside {field.low}..{field.high}, ignored"


def cut(text: str, max_bytes: int) -> str:
    """`text` cut to whole characters within `max_bytes` of UTF-8; lone surrogates become `?`."""
    data = text.encode(errors="replace")
    return data[:max_bytes].decode(errors="ignore") if len(data) > max_bytes else data.decode()


def cut_names(names: Any, max_bytes: int) -> tuple[str, ...]:
    """The leading names that fit into `max_bytes` when joined by commas: nearest parents first, no half names."""
    kept: list[str] = []
    used = -1
    for given in names:
        name = cut(given, max_bytes + 1)  # one byte more than fits: a name that is too long stays too long
        if not name or "," in name:
            continue  # a comma in the name would look like a separator
        used += 1 + len(name.encode())
        if used > max_bytes:
            break
        kept.append(name)
    return tuple(kept)


def _decode_integer(field: Field, data: bytes) -> tuple[int | None, str | None]:
    if not _INTEGER.fullmatch(data):
        # A count of twenty or more digits is still a count. It must not become "no attempts so far".
        if field.clamp and len(data) > 19 and data[:1_000].isdigit():
            return field.high, f"{len(data)} digits clamped to {field.high}"
        return None, f"{data[:40]!r} is no number, ignored"
    return clamp_integer(field, int(data))


def _decode_label(field: Field, data: bytes) -> tuple[str | None, str | None]:
    if 0 < len(data) <= field.max_bytes and data.isascii() and not field.choices:
        text = data.decode("ascii")
        if text.isprintable():
            return text, None  # the usual case
    if len(data) > field.max_bytes:
        return None, f"{len(data)} bytes are over {field.max_bytes}, ignored"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None, "is not UTF-8, ignored"
    if not text or not text.isprintable():
        return None, "is empty or not printable, ignored"
    if field.choices and text not in field.choices:
        return None, f"expected {' or '.join(field.choices)}, got: {text[:40]!r}, ignored"
    return text, None
