"""The retry state of a message, the table of its headers, and the ids of messages.

The same message of the same group always gets the same id, so a second copy of a retry is recognised. An id has 95
bits: among a thousand million messages, two share an id with a probability of about 10**-11.

In headers, numbers are decimal ASCII, times are epoch milliseconds, durations are milliseconds, and text is UTF-8. The
parents of an error class are joined by commas. A bound is a number of bytes of the value. A *label* (an id, a topic, a
group) that is too long is left out, because half of it would name something else. *Prose* (an error's text) that is too
long is cut. *Lines* that are too long lose their first lines.

Reading accepts any bytes and never raises: `decode` returns a value or None, and the fault of the bytes or None.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal
from zlib import crc32

from retry_topic.message.message import Message
from wheel_sched.duration import LONGEST_MS

MAX_COUNT = 1_000_000
"""The greatest count of attempts or replays, above every sensible cap. A larger count is lowered to this one."""

Dialect = Literal["none", "own", "spring", "smallrye", "pulsar"]


def retry_id(group: str, topic: str, partition: int, offset: str) -> str:
    """The id of a message: 16 url-safe characters made of group, topic, partition and offset of the original record.

    The first character is a letter, so that a command line never takes an id for an option. `topic` may be the broker's
    topic *id*: then a topic that was recreated does not repeat old ids.
    """
    parts = [part.encode(errors="surrogatepass") for part in (group, topic, str(partition), offset)]
    # with lengths, so that ("ab", "c") differs from ("a", "bc")
    digest = blake2b(b"".join(len(part).to_bytes(4, "big") + part for part in parts), digest_size=12).digest()
    return urlsafe_b64encode(bytes([digest[0] & 0x7F]) + digest[1:]).decode()  # the dash is in the upper half


def content_id(group: str, value: bytes, key: bytes | None) -> str:
    """An id made of payload and key, for an unsigned record (see `signature`). Equal records share it."""
    digest = blake2b(value, digest_size=16).hexdigest()
    return retry_id(group, "", 0, digest if key is None else digest + blake2b(key, digest_size=16).hexdigest())


def content_print(value: bytes, key: bytes | None) -> str:
    """A short checksum of payload and key. It distinguishes two messages that got the same id by accident.

    It does not protect against an attacker, who can make two messages with one checksum. A signature covers the whole
    payload.
    """
    return f"{crc32(value, 0 if key is None else crc32(key, len(key) + 1)):x}"


@dataclass(slots=True, unsafe_hash=True)
class RetryState:
    """What the retry headers of a message say. Each field has its own header, see `FIELDS`.

    Nobody changes a state; `dataclasses.replace` makes another one. It is not frozen, because one is made for each
    message and a frozen dataclass takes three times as long to make.

    `attempt` counts the deliveries that have *failed*: 0 on a new message, 1 in the retry topic after the first
    failure. The delivery that is running is number `attempt + 1`.

    Args:
        id: the id of the message, made by `retry_id` or by its publisher; all its attempts have it. Defaults to None.
        attempt: failed deliveries so far. Defaults to 0.
        max_attempts: the cap by count at the last failure; for consumers to read, never used to decide.
        first_failed_ms: epoch ms of the first failure.
        last_failed_ms: epoch ms of the last failure.
        due_ms: epoch ms of the due time that the intake last gave the message. A record in the retry topic still has
            the due time of the attempt that failed. None before the first retry and on a dead letter.
        started_ms: epoch ms at which the failed attempt was started, for reports.
        policy: `name@version` of the policy that decided.
        delay_ms: the delay that the intake last chose.
        verdict: the verdict that the handler returned; "dead" for a message that was given up without a call.
        retry_after_ms: the delay that the handler or the remote side requested.
        original_topic: the topic on which the message first failed.
        original_partition: the message's partition there.
        original_offset: the message's offset there, as text because brokers differ.
        original_timestamp_ms: the message's timestamp there.
        consumer_group: the group whose handler failed.
        error_class: fully qualified class of the last error.
        error_mro: the parents of that class, nearest first.
        error_message: the error's text.
        error_fingerprint: the fingerprint of the error, see `fingerprint`.
        error_status: the error's HTTP status.
        replays: how often the message was replayed from the dead letters. Defaults to 0.
        item_id: the id of the item from which the store released this attempt. Only a replayed dead letter has it, and
            only until its next failure. Other items' ids follow from id base and attempt, but a letter keeps its id.
        key_lock: the lock of its ordering key in the delay store; None if the message is not ordered.
        published_ms: epoch ms at which it was published with an id from its publisher; None if the id was made of
            topic, partition and offset.
        signature: HMAC over id, group, original, counts, payload and some more, see `signature`.
        oddities: the faults of the headers, in words; not compared and not written. Defaults to none.
        dialect: whose headers were read, "none" when there were none; not compared and not written.
        process: `host:pid` of the consumer in which the last attempt failed. Only a record in the retry topic has it.
            The intake moves it to `failed_attempts`.
        failed_attempts: what is known about the failed attempts, in lines; see `failed_attempts`. Not signed.
        traceback: the traceback of the last failed attempt. A message in the retry topic, the store or the dead topic
            has it; a redelivered message does not. Not signed.
        trace_step: the trace context (`traceparent`) of the last span about the message; only with `tracing`. Not
            signed: a forged one makes a wrong link and nothing else.
        unsigned: none of our secrets has signed the headers. Then the id is made of payload and key, and the store
            counts the attempts. Not compared and not written.
    """

    id: str | None = None
    attempt: int = 0
    max_attempts: int | None = None
    first_failed_ms: int | None = None
    last_failed_ms: int | None = None
    due_ms: int | None = None
    started_ms: int | None = None
    policy: str | None = None
    delay_ms: int | None = None
    verdict: Literal["retry", "dead"] | None = None
    retry_after_ms: int | None = None
    original_topic: str | None = None
    original_partition: int | None = None
    original_offset: str | None = None
    original_timestamp_ms: int | None = None
    consumer_group: str | None = None
    error_class: str | None = None
    error_mro: tuple[str, ...] = ()
    error_message: str | None = None
    error_fingerprint: str | None = None
    error_status: int | None = None
    replays: int = 0
    item_id: str | None = None
    key_lock: str | None = None
    published_ms: int | None = None
    signature: str | None = None
    process: str | None = None
    failed_attempts: str | None = None
    traceback: str | None = None
    trace_step: str | None = None
    oddities: tuple[str, ...] = field(default=(), compare=False)
    dialect: Dialect = field(default="none", compare=False)
    unsigned: bool = field(default=False, compare=False)

    @property
    def known_as(self) -> str:
        """The name under which the store counts the message's attempts.

        An id that was made of group, topic, partition and offset already names group and message. An id from a
        publisher does not: every group of the topic sees it, and the publisher may use it again later. So the name of
        such a message is its id and a hash of group and publishing time.
        """
        if self.published_ms is None:
            return f"{self.id}"
        return f"{f'{self.id}'[:64]}~{retry_id(self.consumer_group or '', f'{self.id}', 0, f'{self.published_ms}')[:8]}"

    @property
    def id_base(self) -> str:
        """The message id base, with which the store's ids of all attempts begin. Each replay has a new base."""
        return f"{self.known_as}r{self.replays}" if self.replays else self.known_as

    @property
    def passed_the_store(self) -> bool:
        """Whether a dispatcher has released the message. Then a second copy of it may exist."""
        return self.id is not None and bool(self.attempt or self.replays or self.published_ms is not None)


def replays_key(known_as: str) -> str:
    """The key under which the store counts the replays of a message."""
    return f"{known_as}!"


def attempts_key(state: RetryState, message: Message) -> str:
    """The key under which the store counts a message's attempts. It differs for two payloads under the same id."""
    return f"{state.known_as}:{state.replays}:{content_print(message.value, message.key)}"


MAX_VALUE_BYTES = 250  # a Kafka topic's name has at most 249
MAX_MRO_BYTES = 500
MAX_PROCESS_BYTES = 80
MAX_MESSAGE_BYTES = 1_000
MAX_TOTAL_BYTES = 3_500
"""The greatest sum of all our names and values, except failed attempts, traceback and trace step (`Field.extra`).
Without the error's message, all fields at their bounds need less than this. So only the message is ever shortened, and
an ordinary state keeps its full message."""

MAX_ATTEMPTS_BYTES = 2_048
MAX_TRACEBACK_BYTES = 4_096
MAX_TRACE_STEP_BYTES = 55  # 00-<trace id>-<span id>-<flags>

LAST_MS = 253_402_300_799_999  # the end of the year 9999, where calendars end
_MAX_PARTITION = 2**31 - 1
# Only a few decimal ASCII digits. int() alone accepts "1_0", blanks and digits of any script, and is slow on megabytes.
_INTEGER = re.compile(rb"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Field:
    """The header of one field of `RetryState`, and the bounds of its value.

    Args:
        header: the header's name.
        kind: `integer`, `label`, `prose`, `names` or `lines`.
        low: the least integer.
        high: the greatest integer.
        clamp: whether a larger integer counts as `high`. Otherwise it is ignored. Counts are clamped, because they must
            not be lowered.
        max_bytes: the most bytes that the value may have.
        pattern: the form of the label. Defaults to None: any form.
        shared: whether many messages have the same value, so that its decoding is cached.
        extra: whether the header may be left out of a message that is too large. Such a header does not count for
            `MAX_TOTAL_BYTES`.
    """

    header: str
    kind: Literal["integer", "label", "prose", "names", "lines"]
    low: int = 0
    high: int = LAST_MS
    clamp: bool = False
    max_bytes: int = MAX_VALUE_BYTES
    pattern: re.Pattern[str] | None = None
    shared: bool = False
    extra: bool = False


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
    "verdict": Field("retry-verdict", "label", pattern=re.compile("retry|dead"), shared=True),
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
    "item_id": Field("retry-item", "label"),
    "key_lock": Field("retry-key-lock", "label", pattern=re.compile(r"[A-Za-z0-9_-]{12}\.[A-Za-z0-9_-]{16}")),
    "published_ms": Field("retry-published-at", "integer"),
    "signature": Field("retry-signature", "label"),
    "process": Field("retry-process", "label", max_bytes=MAX_PROCESS_BYTES),
    "failed_attempts": Field("retry-failed-attempts", "lines", max_bytes=MAX_ATTEMPTS_BYTES, extra=True),
    "traceback": Field("retry-traceback", "prose", max_bytes=MAX_TRACEBACK_BYTES, extra=True),
    "trace_step": Field("retry-trace-step", "prose", max_bytes=MAX_TRACE_STEP_BYTES, extra=True),
}
"""Each field of `RetryState` and its header, in the order in which headers are written."""

HEADER_NAMES = frozenset(field.header for field in FIELDS.values())
FAILED_ATTEMPTS = FIELDS["failed_attempts"].header
TRACEBACK = FIELDS["traceback"].header
TRACE_STEP = FIELDS["trace_step"].header


def decode(field: Field, data: bytes) -> tuple[Any, str | None]:
    """The value that the bytes encode (None: they encode none), and the fault of the bytes in words (None: they have
    none)."""
    if field.kind == "integer":
        if data.isdigit() and len(data) < 19 and field.low <= (value := int(data)) <= field.high:
            return value, None  # the usual case
        return _decode_integer(field, data)
    if field.kind == "label":
        return _decode_label(field, data)
    if field.kind == "lines":
        odd = "cut to its bound" if len(data) > field.max_bytes else None
        return last_lines(data[-4 * field.max_bytes :].decode(errors="replace"), field.max_bytes), odd
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
    if field.kind == "lines":
        return last_lines(value, field.max_bytes).encode()
    if field.kind == "prose":
        return cut(value, field.max_bytes).encode()
    if value.isascii() and value.isprintable() and 0 < len(value) <= field.max_bytes and field.pattern is None:
        return bytes(value, "ascii")  # the usual case
    data: bytes = value.encode(errors="replace")
    return None if _decode_label(field, data)[1] else data


def clamp_integer(field: Field, value: int) -> tuple[int | None, str | None]:
    """The integer within the field's bounds (None: it is ignored), and its fault in words (None: it has none)."""
    if field.low <= value <= field.high:
        return value, None
    if value > field.high and field.clamp:
        return field.high, f"{value} clamped to {field.high}"
    return None, f"{value} is outside {field.low}..{field.high}, ignored"


def cut(text: str, max_bytes: int) -> str:
    """`text` cut to whole characters within `max_bytes` of UTF-8; lone surrogates become `?`."""
    data = text.encode(errors="replace")
    return data[:max_bytes].decode(errors="ignore") if len(data) > max_bytes else data.decode()


def last_lines(text: str, max_bytes: int) -> str:
    """The last whole lines of `text` that fit into `max_bytes` of UTF-8; lone surrogates become `?`."""
    data = text.encode(errors="replace")
    if len(data) <= max_bytes:
        return data.decode()
    return data[len(data) - max_bytes - 1 :].partition(b"\n")[2].decode(errors="replace")


def cut_names(names: Any, max_bytes: int) -> tuple[str, ...]:
    """The first of `names` that fit into `max_bytes` when joined by commas. No name is cut.

    Empty names and names with a comma are left out. The names are the parents of an error class, nearest first.
    """
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
    if 0 < len(data) <= field.max_bytes and data.isascii() and field.pattern is None:
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
    if field.pattern is not None and not field.pattern.fullmatch(text):
        return None, f"expected {field.pattern.pattern}, got: {text[:40]!r}, ignored"
    return text, None
