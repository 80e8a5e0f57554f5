"""Spring Kafka's retry headers, for consumers in Java that share the topics. Ours stay beside them and decide.

A message on its way to another attempt gets the names of Spring's retry topics, a dead letter those of its dead-letter
topics. Numbers are big-endian two's complement, as Java writes them: counts and partitions an int, offsets a long,
times a BigInteger of the fewest bytes. What Spring has no form for (an offset that is no number) is left out.

Sources: spring-kafka `RetryTopicHeaders`, `KafkaHeaders`, `DeadLetterPublishingRecovererFactory`.
"""

from __future__ import annotations

from retry_topic.headers.names import FIELDS
from retry_topic.headers.state import RetryState
from retry_topic.headers.values import encode
from retry_topic.message import Headers

_RETRY, _DEAD = "kafka_", "kafka_dlt-"
_GROUP = "kafka_dlt-original-consumer-group"  # this prefix in both families
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
        *(prefix + field for prefix in (_RETRY, _DEAD) for field in _FIELDS),
    }
)
"""Every name that `with_spring` may write."""


def with_spring(headers: Headers, state: RetryState, *, dead: bool) -> Headers:
    """`headers` with Spring's names told anew from `state`, each at most once.

    Args:
        headers: of a message, ours already written.
        state: what they are to tell.
        dead: whether it goes to a dead-letter topic.
    """
    prefix = _DEAD if dead else _RETRY
    told: dict[str, bytes | None] = {}
    if not dead:
        told["retry_topic-attempts"] = _int(state.attempt + 1)  # theirs counts the delivery about to be made
        told["retry_topic-backoff-timestamp"] = _big(state.due_ms)
        told["retry_topic-original-timestamp"] = _big(state.original_timestamp_ms)
    told[prefix + "original-topic"] = _text(state, "original_topic")
    told[prefix + "original-partition"] = None if state.original_partition is None else _int(state.original_partition)
    told[prefix + "original-offset"] = _offset(state.original_offset)
    told[prefix + "original-timestamp"] = _long(state.original_timestamp_ms)
    told[_GROUP] = _text(state, "consumer_group")
    # Spring wraps what a listener throws and so has two classes; readers of either find the handler's error
    told[prefix + "exception-fqcn"] = told[prefix + "exception-cause-fqcn"] = _text(state, "error_class")
    told[prefix + "exception-message"] = _text(state, "error_message")
    others = tuple(pair for pair in headers if pair[0] not in SPRING_NAMES)
    return others + tuple((name, value) for name, value in told.items() if value is not None)


def _text(state: RetryState, field: str) -> bytes | None:
    """Within the bounds of our own header of this field."""
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
