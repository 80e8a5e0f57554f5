"""Header values: bytes to typed values and back, for any bytes whatever.

Decoding never raises: it answers the value, None when there is none to be had, and says in words what was odd.
"""

from __future__ import annotations

import re
from typing import Any

from retry_topic.headers.names import Field

# Decimal ASCII only, and short: int() alone takes "1_0", blanks and any script, and reads megabytes of digits slowly.
_INTEGER = re.compile(rb"-?[0-9]{1,19}")


def decode(field: Field, data: bytes) -> tuple[Any, str | None]:
    """(value or None, oddity or None)."""
    if field.kind == "integer":
        if data.isdigit() and len(data) < 19 and field.low <= (value := int(data)) <= field.high:
            return value, None  # as usual
        return _decode_integer(field, data)
    if field.kind == "label":
        return _decode_label(field, data)
    text = cut(data.decode(errors="replace"), field.max_bytes)
    odd = "cut to its bound" if len(data) > field.max_bytes else None
    if field.kind == "names":
        return cut_names(text.split(","), field.max_bytes), odd
    return text, odd


def encode(field: Field, value: Any) -> bytes | None:
    """The bytes of a value within its bounds; None when it cannot be written."""
    if field.kind == "integer":
        return b"%d" % (value if field.low <= value <= field.high else min(max(value, field.low), field.high))
    if field.kind == "names":
        return ",".join(cut_names(value, field.max_bytes)).encode() or None
    if field.kind == "prose":
        return cut(value, field.max_bytes).encode()
    if value.isascii() and value.isprintable() and 0 < len(value) <= field.max_bytes and not field.choices:
        return bytes(value, "ascii")  # as usual
    data: bytes = value.encode(errors="replace")
    return None if _decode_label(field, data)[1] else data


def clamp_integer(field: Field, value: int) -> tuple[int | None, str | None]:
    """The integer within its bounds, or None, and what was odd about it."""
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
    """The leading names that fit, joined by commas, into `max_bytes`: nearest parents first, no half names."""
    kept: list[str] = []
    used = -1
    for given in names:
        name = cut(given, max_bytes + 1)  # one byte more than fits, so that an over-long name stays too long
        if not name or "," in name:
            continue  # cannot be told from a separator
        used += 1 + len(name.encode())
        if used > max_bytes:
            break
        kept.append(name)
    return tuple(kept)


def _decode_integer(field: Field, data: bytes) -> tuple[int | None, str | None]:
    if not _INTEGER.fullmatch(data):
        # A count of twenty digits and more is still a count: it must not fall back to "none so far".
        if field.clamp and len(data) > 19 and data[:1_000].isdigit():
            return field.high, f"{len(data)} digits clamped to {field.high}"
        return None, f"{data[:40]!r} is no number, ignored"
    return clamp_integer(field, int(data))


def _decode_label(field: Field, data: bytes) -> tuple[str | None, str | None]:
    if 0 < len(data) <= field.max_bytes and data.isascii() and not field.choices:
        text = data.decode("ascii")
        if text.isprintable():
            return text, None  # as usual
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
