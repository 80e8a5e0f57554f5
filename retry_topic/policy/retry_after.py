"""HTTP `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date, as a delay in milliseconds.

Pure, and deaf to nonsense: what is not a `Retry-After` is None, a date that has passed is 0.
"""

from __future__ import annotations

import math
import re
from datetime import UTC
from decimal import Decimal
from email.utils import parsedate_to_datetime

from wheel_sched.duration import LONGEST_MS

# RFC 9110 knows whole seconds only; some services send a fraction, and waiting a little longer is always right.
_SECONDS = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,9})?")
_MAX_DATE_CHARS = 100


def parse_retry_after(text: str, now_ms: int) -> int | None:
    """Milliseconds to wait from `now_ms`, rounded up, at most ten years; None when `text` says nothing usable."""
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
