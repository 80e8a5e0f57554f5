"""Retry topics that another system has written: attempt counts continue, and messages go back to their origin.

`message/test_foreign.py` tests each header.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from retry_topic import RetryPolicy
from retry_topic.message import Headers
from retry_topic.message.topic_names import retry_topic_of

if TYPE_CHECKING:
    from tests.retry_topic.conftest import Bench, Handler

SMALLRYE: Headers = (
    ("delayed-retry-count", b"1"),
    ("delayed-retry-topic", b"orders"),
    ("delayed-retry-partition", b"0"),
    ("delayed-retry-offset", b"17"),
)
PULSAR: Headers = (("RECONSUMETIMES", b"2"), ("REAL_TOPIC", b"orders"), ("ORIGIN_MESSAGE_ID", b"17"))


@pytest.mark.parametrize("headers", [SMALLRYE, PULSAR], ids=["smallrye", "pulsar"])
@pytest.mark.parametrize("redelivery", ["group", "origin"])
def test_what_failed_twice_elsewhere_has_the_rest_of_its_attempts_here(
    bench: Bench,
    policy: Callable[..., RetryPolicy],
    handler: Callable[..., Handler],
    headers: Headers,
    redelivery: str,
) -> None:
    """The message has failed twice in the other system. With max_attempts=4 it gets two more deliveries."""
    failing = handler(OSError("not yet"))
    bench.publish(b"theirs", topic=retry_topic_of(bench.group), key=b"key", headers=headers)
    bench.consume(failing)  # before the service: a message returns only to an origin that the group reads
    bench.serve(policy(max_attempts=4), redelivery=redelivery)
    (letter,) = bench.dead()
    assert failing.attempts == [3, 4]
    assert {call.message.topic for call in failing.calls} == {"orders"}
    assert {call.message.key for call in failing.calls} == {b"key"}
    assert (letter.state.attempt, letter.topic) == (4, "orders")
    assert {(call.state.original_topic, call.state.original_offset) for call in failing.calls} == {("orders", "17")}
