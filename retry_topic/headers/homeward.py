"""The way home: a message that failed goes to the partition it came from, and carries the time it had there.

Its headers say both, so that nothing else has to be kept while it waits, and a message of any earlier release finds
home as well. What is not there or no number is left to the topic, as is a partition that it does not have.

Source: Spring Kafka's `DeadLetterPublishingRecoverer`, which keeps the partition.
"""

from __future__ import annotations

from retry_topic.headers.names import FIELDS
from retry_topic.message import Message

_PARTITION = FIELDS["original_partition"].header
_TIMESTAMP = FIELDS["original_timestamp_ms"].header
_DIGITS = 15  # of the last millisecond there is


def homeward(message: Message) -> Message:
    """A message that failed, addressed to the partition and with the time of its original.

    For messages on their way out of the delay store or to a dead topic. On any other the same headers may have been
    copied by a handler, and are about another message.
    """
    told = dict(message.headers)
    partition, timestamp = told.get(_PARTITION), told.get(_TIMESTAMP)
    if partition is None and timestamp is None:
        return message
    value, key, headers = message.value, message.key, message.headers
    at_ms = _number(timestamp)
    return Message(message.topic, value, key, headers, None, message.reference, _number(partition), at_ms)


def _number(data: bytes | None) -> int | None:
    return int(data) if data is not None and data.isdigit() and len(data) <= _DIGITS else None
