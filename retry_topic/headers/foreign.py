"""Reading other people's retry headers, so that a topic of theirs can be adopted with its counts.

| from     | count                        | meaning of the number on a record in a retry topic                   |
|----------|------------------------------|----------------------------------------------------------------------|
| Spring   | `retry_topic-attempts`       | the delivery about to be made, from 2: failed = n - 1                |
| SmallRye | `delayed-retry-count`        | retries already made, 0 after the first failure: failed = n + 1      |
| Pulsar   | `RECONSUMETIMES`             | times put back, 1 after the first failure: failed = n                |

Spring writes numbers as big-endian two's complement (int, long, or BigInteger of the fewest bytes; early versions
wrote the count as one byte), the others as decimal text. Sources: spring-kafka `RetryTopicHeaders`, `KafkaHeaders`,
`DeadLetterPublishingRecovererFactory`; SmallRye `KafkaDelayedRetryTopic`; Pulsar `RetryMessageUtil`. Never raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retry_topic.headers.names import FIELDS
from retry_topic.headers.state import Dialect, RetryState
from retry_topic.headers.values import clamp_integer, decode

_MAX_BINARY_BYTES = 8  # a Java long


def read_foreign(last: Mapping[str, bytes]) -> RetryState:
    """The state that foreign headers tell of (`last`: the last value per name); an empty one when there are none."""
    if any(name in last for name in ("retry_topic-attempts", "retry_topic-backoff-timestamp")) or any(
        f"{prefix}original-topic" in last for prefix in _SPRING_PREFIXES
    ):
        return _spring(_Reader(last))
    if "delayed-retry-count" in last:
        return _smallrye(_Reader(last))
    if "RECONSUMETIMES" in last:
        return _pulsar(_Reader(last))
    return RetryState()


_SPRING_PREFIXES = ("kafka_", "kafka_dlt-")


class _Reader:
    """Collects fields and oddities from foreign headers."""

    def __init__(self, last: Mapping[str, bytes]) -> None:
        self.last = last
        self.values: dict[str, Any] = {}
        self.oddities: list[str] = []

    def text(self, field: str, *headers: str) -> None:
        """Set `field` from the first of `headers` that is present, written as text."""
        for header in headers:
            if header in self.last and field not in self.values:
                self._set(field, header, *decode(FIELDS[field], self.last[header]))

    def binary(self, field: str, *headers: str, add: int = 0) -> None:
        """Set `field` from the first of `headers` that is present, written as big-endian two's complement."""
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
        """Shift a count that was read, into our way of counting."""
        if field in self.values:
            self.values[field] = min(self.values[field] + number, FIELDS[field].high)

    def state(self, dialect: Dialect) -> RetryState:
        # A message that carries somebody's retry headers has failed once at least, however broken they are.
        self.values["attempt"] = max(1, self.values.get("attempt", 1))
        if self.values.get("first_failed_ms") is None:
            # Never later than the truth, so that the cap by age cannot be moved.
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
    both = _SPRING_PREFIXES
    reader.text("original_topic", *(f"{prefix}original-topic" for prefix in both))
    reader.binary("original_partition", *(f"{prefix}original-partition" for prefix in both))
    reader.binary("original_offset", *(f"{prefix}original-offset" for prefix in both))
    timestamps = [f"{prefix}original-timestamp" for prefix in both]
    reader.binary("original_timestamp_ms", "retry_topic-original-timestamp", *timestamps)
    # The group has the long prefix in both families.
    reader.text("consumer_group", "kafka_dlt-original-consumer-group")
    # The outer class is mostly Spring's own wrapper; the cause is what a rule is about.
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
