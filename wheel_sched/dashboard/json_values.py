"""Turns values from messages into values that JSON can hold, so no value in a message makes an answer fail."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

DEEPEST = 30


def json_value(value: Any, depth: int = 0) -> Any:
    """The value, changed where JSON cannot hold it.

    NaN and infinite numbers become texts, and so do values of types that JSON does not have. Lone surrogates are
    escaped. A text stands in place of values more than `DEEPEST` levels deep.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth >= DEEPEST:
        return "(too deep, not shown)"
    if isinstance(value, Mapping):
        return {str(json_value(str(name))): json_value(part, depth + 1) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(part, depth + 1) for part in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    return json_value(str(value))
