"""Writing Spring's retry headers: Spring's readers and this package's reader get the right values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from retry_topic import Message, RetryPolicy
from retry_topic.message.headers import MAX_COUNT, SPRING_NAMES, RetryState, read, with_spring
from retry_topic.message.topic_names import dead_topic_of
from retry_topic.policy import Fixed

if TYPE_CHECKING:
    from conftest import Bench

TIME_MS = 1_700_000_000_000
STATE = RetryState(
    id="m",
    attempt=2,
    due_ms=TIME_MS + 5_000,
    original_topic="orders",
    original_partition=7,
    original_offset="123456",
    original_timestamp_ms=TIME_MS,
    consumer_group="billing",
    error_class="shop.PaymentTimeout",
    error_message="no answer",
)


@pytest.mark.parametrize("dead", [False, True])
def test_what_is_told_is_what_springs_readers_find(dead: bool) -> None:
    """Spring's headers are read back with the same values. A dead letter has no due time and counts as one failure."""
    written = with_spring((("trace", b"t"),), STATE, dead=dead)
    back = read(written)
    assert back.dialect == "spring"
    same = ("original_topic", "original_partition", "original_offset", "original_timestamp_ms", "consumer_group")
    for field in (*same, "error_class", "error_message"):
        assert getattr(back, field) == getattr(STATE, field), field
    assert (back.attempt, back.due_ms) == ((1, None) if dead else (2, TIME_MS + 5_000))
    assert back.oddities == ()
    assert dict(written)["trace"] == b"t"


def test_numbers_have_javas_widths() -> None:
    """Numbers are written as Java's int (4 bytes), long (8 bytes) or BigInteger (the fewest bytes)."""
    written = dict(with_spring((), STATE, dead=False))
    assert written["retry_topic-attempts"] == b"\x00\x00\x00\x03"
    assert written["kafka_original-partition"] == b"\x00\x00\x00\x07"
    assert written["kafka_original-offset"] == (123_456).to_bytes(8, "big")
    assert written["retry_topic-backoff-timestamp"] == (TIME_MS + 5_000).to_bytes(6, "big")
    assert with_spring((), replace(STATE, due_ms=128), dead=False)[1] == ("retry_topic-backoff-timestamp", b"\x00\x80")


@pytest.mark.parametrize("offset", ["7-0", "", "x", "²", str(2**63)])
def test_what_spring_has_no_form_for_is_left_out(offset: str) -> None:
    """An offset that is no Java long, such as a stream entry's id, is not written."""
    assert "kafka_original-offset" not in dict(with_spring((), replace(STATE, original_offset=offset), dead=False))


def test_they_do_not_grow_from_hop_to_hop() -> None:
    """Old Spring headers are replaced, each by one new header. All together stay below 3,072 bytes."""
    headers = with_spring(tuple((name, b"old") for name in SPRING_NAMES) * 3, STATE, dead=False)
    again = with_spring(headers, STATE, dead=True)
    assert sorted(name for name, _ in again) == sorted({name for name, _ in again})
    assert b"old" not in dict(again).values()
    huge = replace(STATE, attempt=MAX_COUNT, error_message="x" * 100_000, error_class="y" * 10_000)
    assert sum(len(name) + len(value) for name, value in with_spring((), huge, dead=False)) < 3_072


def test_a_service_that_tells_them(bench: Bench) -> None:
    """On a redelivery, `retry-` headers and Spring's agree. The dead topic gets Spring's headers for dead letters."""
    seen = []

    def handle(message: Message) -> None:
        seen.append(message.headers)
        raise ValueError("no")

    bench.serve(RetryPolicy(delay=Fixed(10), max_attempts=3), headers="spring")
    bench.consume(handle)
    bench.publish(b"m")
    (letter,) = bench.dead()
    assert letter.message is not None
    fresh, second, third = (dict(headers) for headers in seen)
    assert SPRING_NAMES.isdisjoint(fresh)
    for attempt, headers in ((2, second), (3, third)):
        assert int.from_bytes(headers["retry_topic-attempts"], "big") == attempt
        assert headers["kafka_original-topic"] == headers["retry-original-topic"] == b"orders"
        assert headers["kafka_exception-cause-fqcn"] == b"builtins.ValueError"
    (dead,) = bench.records(dead_topic_of(bench.group))
    written = dict(dead.headers)
    assert written["kafka_dlt-original-topic"] == b"orders"
    assert "retry_topic-attempts" not in written
