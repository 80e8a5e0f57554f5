"""Durations as text: `250ms`, `90s`, `1h30m`, `1.5s`, `1d`, `2w`, or ISO 8601 (`PT1H30M`, `P1DT12H`).

Invariant: `parse_duration(format_duration(ms)) == ms`, from 0 ms to ten years. The arithmetic is decimal, never float.
A fraction of a millisecond rounds up, so that no deadline fires early. The largest unit comes first, and each unit at
most once. Months and years are refused, because they have no fixed length. A number without a unit is refused too.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from wheel_sched.errors import ConfigError

UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
"""Units and their length, largest first: the order in which a text must name them."""

LONGEST_MS = 3_650 * UNITS_MS["d"]
"""The longest duration, ten years. Any due time, in epoch milliseconds, then stays exact in a double."""

_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,6})?)"
_SHORT = re.compile("".join(f"(?:{_NUMBER}{unit}(?![a-z]))?" for unit in UNITS_MS))
_ISO = re.compile(
    rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=[0-9])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?",
)


def parse_duration(text: str) -> int:
    """The milliseconds of a duration text, rounded up.

    Raises:
        ConfigError: the text is not a duration, or it is longer than ten years.
    """
    compact = text.replace(" ", "")
    match = _SHORT.fullmatch(compact) or _ISO.fullmatch(compact)
    parts = match.groups() if match else ()
    if not any(parts):
        raise ConfigError(f'expected a duration such as "250ms", "90s", "5m", "2h", "1d" or "PT90S", got: {text!r}')
    total = sum(Decimal(part) * unit for part, unit in zip(parts, UNITS_MS.values(), strict=False) if part)
    delay_ms = math.ceil(total)
    if delay_ms > LONGEST_MS:
        raise ConfigError(f"expected a duration of at most {format_duration(LONGEST_MS)}, got: {text!r}")
    return delay_ms


def format_duration(delay_ms: int) -> str:
    """A short exact text of a duration: `250ms`, `2.7s`, `1h30m`, `3650d`."""
    if delay_ms < 0:
        return "-" + format_duration(-delay_ms)
    if 0 < delay_ms < UNITS_MS["s"]:
        return f"{delay_ms}ms"
    text, rest = "", delay_ms
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, UNITS_MS[unit])
        text += f"{count}{unit}" if count else ""
    if rest or not text:
        seconds, fraction = divmod(rest, UNITS_MS["s"])
        text += f"{seconds}" + (f".{fraction:03d}".rstrip("0") if fraction else "") + "s"
    return text
