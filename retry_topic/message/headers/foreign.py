"""Retry headers of other systems. This package reads them, so that a group can take over topics of these systems and
keep the counts of attempts. It also writes Spring's headers.

| from     | header of the count          | what its number n counts, on a record in a retry topic               |
|----------|------------------------------|----------------------------------------------------------------------|
| Spring   | `retry_topic-attempts`       | the delivery that is about to be made, from 2: failed = n - 1        |
| SmallRye | `delayed-retry-count`        | retries already made, 0 after the first failure: failed = n + 1      |
| Pulsar   | `RECONSUMETIMES`             | times put back, 1 after the first failure: failed = n                |

Spring writes numbers as big-endian two's complement: counts and partitions are an int (one byte in early versions),
offsets a long, times a BigInteger of the fewest bytes. SmallRye and Pulsar write decimal text. Reading never raises.

`with_spring` writes Spring's headers for consumers in Java that share the topics. The message keeps our headers, and
only ours are read back. Spring has two families of header names. A message that will be retried gets the headers of a
record in a retry topic (`kafka_original-topic`, ...). A dead letter gets the headers of a record in a dead-letter topic
(`kafka_dlt-original-topic`, ...). A value that Spring has no form for (an offset that is no number) is left out.

Sources: spring-kafka `RetryTopicHeaders`, `KafkaHeaders`, `DeadLetterPublishingRecovererFactory`; SmallRye
`KafkaDelayedRetryTopic`; Pulsar `RetryMessageUtil`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retry_topic.message.headers.state import FIELDS, Dialect, RetryState, clamp_integer, decode, encode
from retry_topic.message.message import Headers

_MAX_BINARY_BYTES = 8  # a Java long
_PREFIXES = _RETRY, _DEAD = "kafka_", "kafka_dlt-"
_GROUP = "kafka_dlt-original-consumer-group"  # both families have this prefix here
_FIELDS = (
    "original-topic",
    "original-partition",
    "original-offset",
    "original-timestamp",
    "exception-fqcn",
    "exception-cause-fqcn",
    "exception-message",
)

SPRING_NAMES = frozenset(
    {
        "retry_topic-attempts",
        "retry_topic-backoff-timestamp",
        "retry_topic-original-timestamp",
        _GROUP,
        *(prefix + field for prefix in _PREFIXES for field in _FIELDS),
    }
)
"""Every name that `with_spring` may write."""


def read_foreign(last: Mapping[str, bytes]) -> RetryState:
    """The state in foreign headers (`last`: the last value of each name); an empty one when there are none."""
    if any(name in last for name in ("retry_topic-attempts", "retry_topic-backoff-timestamp")) or any(
        f"{prefix}original-topic" in last for prefix in _PREFIXES
    ):
        return _spring(_Reader(last))
    if "delayed-retry-count" in last:
        return _smallrye(_Reader(last))
    if "RECONSUMETIMES" in last:
        return _pulsar(_Reader(last))
    return RetryState()


class _Reader:
    """Collects fields from foreign headers, and notes the broken ones."""

    def __init__(self, last: Mapping[str, bytes]) -> None:
        self.last = last
        self.values: dict[str, Any] = {}
        self.oddities: list[str] = []

    def text(self, field: str, *headers: str) -> None:
        """Set `field` from the first of `headers` that is present. The header holds text."""
        for header in headers:
            if header in self.last and field not in self.values:
                self._set(field, header, *decode(FIELDS[field], self.last[header]))

    def binary(self, field: str, *headers: str, add: int = 0) -> None:
        """Set `field` from the first of `headers` that is present, plus `add`. The header holds big-endian two's
        complement."""
        for header in headers:
            data = self.last.get(header)
            if data is None or field in self.values:
                continue
            if not 1 <= len(data) <= _MAX_BINARY_BYTES:
                self.oddities.append(f"{header}: {len(data)} bytes are no number, ignored")
                continue
            number = int.from_bytes(data, "big", signed=True) + add
            if FIELDS[field].kind == "label":
                self._set(field, header, str(number), None)
            else:
                self._set(field, header, *clamp_integer(FIELDS[field], number))

    def add(self, field: str, number: int) -> None:
        """Add `number` to a foreign count, which converts the count to the number of failed deliveries."""
        if field in self.values:
            self.values[field] = min(self.values[field] + number, FIELDS[field].high)

    def state(self, dialect: Dialect) -> RetryState:
        # A message with retry headers of any system has failed at least once, even if the headers are broken.
        self.values["attempt"] = max(1, self.values.get("attempt", 1))
        if self.values.get("first_failed_ms") is None:
            # It is never later than the true time, so no client can extend the cap by age.
            self.values["first_failed_ms"] = self.values.get("original_timestamp_ms")
        return RetryState(**self.values, oddities=tuple(self.oddities), dialect=dialect)

    def _set(self, field: str, header: str, value: Any, oddity: str | None) -> None:
        if value is not None:
            self.values[field] = value
        if oddity:
            self.oddities.append(f"{header}: {oddity}")


def _spring(reader: _Reader) -> RetryState:
    reader.binary("attempt", "retry_topic-attempts", add=-1)
    reader.binary("due_ms", "retry_topic-backoff-timestamp")
    both = _PREFIXES
    reader.text("original_topic", *(f"{prefix}original-topic" for prefix in both))
    reader.binary("original_partition", *(f"{prefix}original-partition" for prefix in both))
    reader.binary("original_offset", *(f"{prefix}original-offset" for prefix in both))
    timestamps = [f"{prefix}original-timestamp" for prefix in both]
    reader.binary("original_timestamp_ms", "retry_topic-original-timestamp", *timestamps)
    reader.text("consumer_group", _GROUP)
    # The outer class is usually Spring's own wrapper; the rules of a policy are about the cause.
    causes = [f"{prefix}exception-cause-fqcn" for prefix in both]
    classes = [f"{prefix}exception-fqcn" for prefix in both]
    reader.text("error_class", *causes, *classes)
    reader.text("error_mro", *classes)
    reader.text("error_message", *(f"{prefix}exception-message" for prefix in both))
    return reader.state("spring")


def _smallrye(reader: _Reader) -> RetryState:
    reader.text("attempt", "delayed-retry-count")
    reader.add("attempt", 1)
    reader.text("first_failed_ms", "delayed-retry-first-processing-timestamp")
    reader.text("original_timestamp_ms", "delayed-retry-original-timestamp")
    reader.text("original_topic", "delayed-retry-topic")
    reader.text("original_partition", "delayed-retry-partition")
    reader.text("original_offset", "delayed-retry-offset")
    reader.text("error_class", "delayed-retry-cause-class-name", "delayed-retry-exception-class-name")
    reader.text("error_mro", "delayed-retry-exception-class-name")
    reader.text("error_message", "delayed-retry-cause", "delayed-retry-reason")
    return reader.state("smallrye")


def _pulsar(reader: _Reader) -> RetryState:
    reader.text("attempt", "RECONSUMETIMES")
    reader.text("delay_ms", "DELAY_TIME")
    reader.text("original_topic", "REAL_TOPIC")
    reader.text("original_offset", "ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME")
    return reader.state("pulsar")


def with_spring(headers: Headers, state: RetryState, *, dead: bool) -> Headers:
    """`headers` with Spring's headers for `state`, each name at most once.

    Args:
        headers: the headers of a message, with ours already written.
        state: the state to write.
        dead: whether the message goes to a dead-letter topic.
    """
    prefix = _DEAD if dead else _RETRY
    written: dict[str, bytes | None] = {}
    if not dead:
        written["retry_topic-attempts"] = _int(state.attempt + 1)  # Spring counts the delivery that is about to be made
        written["retry_topic-backoff-timestamp"] = _big(state.due_ms)
        written["retry_topic-original-timestamp"] = _big(state.original_timestamp_ms)
    written[prefix + "original-topic"] = _text(state, "original_topic")
    written[prefix + "original-partition"] = (
        None if state.original_partition is None else _int(state.original_partition)
    )
    written[prefix + "original-offset"] = _offset(state.original_offset)
    written[prefix + "original-timestamp"] = _long(state.original_timestamp_ms)
    written[_GROUP] = _text(state, "consumer_group")
    # Spring wraps the listener's exception and so has two classes; readers of both find the handler's error
    written[prefix + "exception-fqcn"] = written[prefix + "exception-cause-fqcn"] = _text(state, "error_class")
    written[prefix + "exception-message"] = _text(state, "error_message")
    others = tuple(pair for pair in headers if pair[0] not in SPRING_NAMES)
    return others + tuple((name, value) for name, value in written.items() if value is not None)


def _text(state: RetryState, field: str) -> bytes | None:
    """The bytes of a field of `state`, within the bounds of our own header; None if they cannot be written."""
    value = getattr(state, field)
    return None if value is None else encode(FIELDS[field], value)


def _int(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _long(value: int | None) -> bytes | None:
    return None if value is None else value.to_bytes(8, "big", signed=True)


def _big(value: int | None) -> bytes | None:
    return None if value is None else value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _offset(value: str | None) -> bytes | None:
    if value is None or not (value.isascii() and value.isdigit()) or int(value) >= 2**63:
        return None
    return _long(int(value))
