"""How the endpoint fails: the id of a record decides its failure profile, which is the same in every run.

Shares of the records: 70 % succeed at once; 12 % get 503 one to three times; 8 % get 429 with Retry-After once; 4 %
hang once, longer than the client's timeout; 3 % get one connection reset; 2 % always get 410; 1 % always get 503.
"""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from typing import NamedTuple


class Answer(Enum):
    """What the endpoint does with one request."""

    FINE = "200"
    BUSY = "503"
    THROTTLED = "429"
    HANG = "time-out"
    RESET = "reset"
    GONE = "410"


class FailureProfile(NamedTuple):
    """The first `times` requests of a record (all if None) get the answer `answer`. Later requests succeed."""

    answer: Answer
    times: int | None


_SHARES = (
    (70, Answer.FINE),
    (82, Answer.BUSY),
    (90, Answer.THROTTLED),
    (94, Answer.HANG),
    (97, Answer.RESET),
    (99, Answer.GONE),
)


def failure_profile_of(record_id: str) -> FailureProfile:
    """The failure profile of a record; the same in every run."""
    digest = blake2b(record_id.encode(), digest_size=4).digest()
    share, times = digest[0] * 256 + digest[1], digest[2] % 3 + 1
    percent = share * 100 / 65536
    for bound, answer in _SHARES:
        if percent < bound:
            if answer is Answer.GONE:
                return FailureProfile(answer, None)
            return FailureProfile(answer, times if answer is Answer.BUSY else 1)
    return FailureProfile(Answer.BUSY, None)
