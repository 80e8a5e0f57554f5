"""How the endpoint fails: a temper per record, drawn from its id, so that every run fails alike.

Shares of records: 70 % fine at once, 12 % answer 503 one to three times, 8 % answer 429 with Retry-After once, 4 %
hang past the client's timeout, 3 % reset the connection, 2 % answer 410 for ever, 1 % answer 503 for ever.
"""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from typing import NamedTuple


class Mood(Enum):
    """What the endpoint does with one request."""

    FINE = "200"
    BUSY = "503"
    THROTTLED = "429"
    HANG = "time-out"
    RESET = "reset"
    GONE = "410"


class Temper(NamedTuple):
    """A record's failures: `mood` for the first `times` requests (None = for ever), then fine."""

    mood: Mood
    times: int | None


_SHARES = ((70, Mood.FINE), (82, Mood.BUSY), (90, Mood.THROTTLED), (94, Mood.HANG), (97, Mood.RESET), (99, Mood.GONE))


def temper_of(record_id: str) -> Temper:
    """The temper of a record, always the same."""
    digest = blake2b(record_id.encode(), digest_size=4).digest()
    share, times = digest[0] * 256 + digest[1], digest[2] % 3 + 1
    percent = share * 100 / 65536
    for bound, mood in _SHARES:
        if percent < bound:
            if mood is Mood.GONE:
                return Temper(mood, None)
            return Temper(mood, times if mood is Mood.BUSY else 1)
    return Temper(Mood.BUSY, None)
