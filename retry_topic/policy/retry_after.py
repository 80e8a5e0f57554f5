"""Parses HTTP `Retry-After` (RFC 9110, section 10.2.3), seconds or a date, into a delay in milliseconds.

The function is pure. An invalid value gives None; a date in the past gives 0.
"""

from __future__ import annotations

import math
import re
from datetime import UTC
from decimal import Decimal
from email.utils import parsedate_to_datetime

from wheel_sched.duration import LONGEST_MS

# RFC 9110 allows only whole seconds. Some services send a fraction; it is rounded up.
_SECONDS = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,9})?")
_MAX_DATE_CHARS = 100


def parse_retry_after(text: str, now_ms: int) -> int | None:
    """Milliseconds to wait from `now_ms`, rounded up, at most ten years; None when `text` is invalid."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return min(math.ceil(Decimal(text) * 1_000), LONGEST_MS)
    if len(text) > _MAX_DATE_CHARS:
        return None
    try:
        date = parsedate_to_datetime(text)
        date = date.replace(tzinfo=UTC) if date.tzinfo is None else date
        at_ms = int(date.timestamp()) * 1_000  # an HTTP date has whole seconds
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(0, at_ms - now_ms), LONGEST_MS)
