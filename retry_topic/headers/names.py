"""The documented set of headers: names, types and bounds, as one table that reading and writing both follow.

Numbers are decimal ASCII, times epoch milliseconds, durations milliseconds, text UTF-8, the parents of an error
class joined by commas. Bounds are in bytes of the value. An over-long *label* (an id, a topic, a group) is left out,
because half of it would name something else; over-long *prose* is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from retry_topic.headers.state import MAX_COUNT
from wheel_sched.duration import LONGEST_MS

MAX_VALUE_BYTES = 250  # Kafka topics have at most 249
MAX_MRO_BYTES = 500
MAX_MESSAGE_BYTES = 1_000
MAX_TOTAL_BYTES = 3_072
"""Greatest sum of all our names and values. All fields at their bounds come to less than this without the error's
message, so the message alone gives way, and an ordinary state keeps a full one."""

LAST_MS = 253_402_300_799_999  # the end of year 9999, where calendars end
_MAX_PARTITION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """How one field of `RetryState` travels.

    Args:
        header: name of the header.
        kind: `integer`, `label`, `prose` or `names`.
        low: least integer.
        high: greatest integer.
        clamp: True: a larger integer counts as `high` (counts: never trusted downwards); False: it is ignored.
        max_bytes: bound of the value.
        choices: legal labels; empty means any.
        shared: whether many messages have the same value, so that it is worth remembering.
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
"""Field of `RetryState` -> its header, in the order in which headers are written."""

HEADER_NAMES = frozenset(field.header for field in FIELDS.values())
