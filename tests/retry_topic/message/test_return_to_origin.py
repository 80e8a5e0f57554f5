"""How a failed message returns to its original partition with its original time."""

from __future__ import annotations

import pytest

from retry_topic.message import Message, Reference
from retry_topic.message.headers import RetryState, return_to_origin, write


def test_a_message_goes_to_its_partition_with_its_time() -> None:
    """Partition and time come from the retry headers. Everything else stays the same."""
    state = RetryState(id="x", attempt=1, original_topic="orders", original_partition=3, original_timestamp_ms=1_700)
    reference = Reference("g.retry", 0, 1, 2, "digest")
    message = Message("g.redelivery", b"", b"k", write((("h", b"1"),), state), None, reference)
    back = return_to_origin(message)
    assert (back.partition, back.timestamp_ms) == (3, 1_700)
    assert (back.topic, back.value, back.key, back.headers, back.reference) == (
        message.topic,
        message.value,
        message.key,
        message.headers,
        reference,
    )


@pytest.mark.parametrize("odd", [b"", b"-1", b"1.0", b" 1", b"\xb2", b"9" * 16, b"x"])
def test_what_is_no_number_is_left_to_the_topic(odd: bytes) -> None:
    """A partition or time that is not a number is ignored, so the broker chooses."""
    message = Message("t", b"v", None, (("retry-original-partition", odd), ("retry-original-timestamp", odd)))
    back = return_to_origin(message)
    assert (back.partition, back.timestamp_ms, back.headers) == (None, None, message.headers)


def test_a_message_that_did_not_fail_is_the_same() -> None:
    """A message without headers for its origin is not changed."""
    message = Message("t", b"v", None, (("retry-id", b"x"),))
    assert return_to_origin(message) is message
