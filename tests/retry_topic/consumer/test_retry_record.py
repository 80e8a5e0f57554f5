"""How the consumer makes the record for the retry topic from a delivery and a failure. These tests use no threads."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from retry_topic.consumer import failed_message, retry_state
from retry_topic.consumer.outcome import expired, failure_in
from retry_topic.consumer.retry_record import delivered_message
from retry_topic.message import Headers, Message, Source
from retry_topic.message.headers import (
    MAX_COUNT,
    RetryState,
    content_id,
    published,
    read,
    retry_id,
    sign,
    verify,
    write,
)
from retry_topic.policy import Failure

SECRET, OTHER = b"sixteen bytes ok", b"another sixteen!"
FRESH = Message("orders", b"m", b"k", (("trace", b"1"),), Source("orders", 3, "77", 1_700_000_000_000))
ERROR = Failure(error_class="builtins.ValueError", message="x")


def fail(message: Message, group: str = "billing", secrets: tuple[bytes, ...] = ()) -> Message:
    return failed_message(group, message, retry_state(group, message, secrets), ERROR, secrets=secrets)


def delivered(record: Message, topic: str, offset: str = "5") -> Message:
    """A retry record that comes back on `topic`."""
    return replace(record, topic=topic, source=Source(topic, 0, offset))


def spring(attempts: int) -> Headers:
    number = attempts.to_bytes(4, "big")
    return (
        ("retry_topic-attempts", number),
        ("kafka_original-topic", b"payments"),
        ("kafka_original-partition", (2).to_bytes(4, "big")),
        ("kafka_original-offset", (99).to_bytes(8, "big")),
        ("kafka_original-timestamp", (1_600_000_000_000).to_bytes(8, "big")),
    )


def test_a_recreated_topic_does_not_repeat_ids() -> None:
    """If the broker has permanent topic ids, message ids are made from them. The headers still have the
    topic's name."""
    found = failed_message("billing", FRESH, RetryState(), Failure(), topic_id="made-first")
    anew = failed_message("billing", FRESH, RetryState(), Failure(), topic_id="made-anew")
    assert read(found.headers).id == retry_id("billing", "made-first", 3, "77")
    assert read(anew.headers).id == retry_id("billing", "made-anew", 3, "77")
    assert read(found.headers).original_topic == "orders"


def test_a_first_failure_names_its_origin() -> None:
    """The origin is the place where the message was read. The id is a hash of this place and the group."""
    before_ms = time.time_ns() // 1_000_000
    record = fail(FRESH)
    state = read(record.headers)
    assert (record.topic, record.value, record.key, record.header("trace")) == ("billing.retry", b"m", b"k", b"1")
    assert state.id == retry_id("billing", "orders", 3, "77")
    assert (state.original_topic, state.original_partition, state.original_offset) == ("orders", 3, "77")
    assert state.original_timestamp_ms == 1_700_000_000_000
    assert state.first_failed_ms == state.last_failed_ms
    assert state.first_failed_ms is not None
    assert state.first_failed_ms >= before_ms
    assert (state.attempt, state.error_class, state.consumer_group) == (1, "builtins.ValueError", "billing")


def test_a_later_failure_keeps_id_origin_and_first_time() -> None:
    """A second failure changes only the count and the last failure. No header occurs twice."""
    first = fail(FRESH)
    second = fail(delivered(first, "billing.redelivery"))
    one, two = read(first.headers), read(second.headers)
    assert (two.id, two.original_offset, two.first_failed_ms) == (one.id, "77", one.first_failed_ms)
    assert two.attempt == 2
    assert len({name for name, _ in second.headers}) == len(second.headers)


def test_foreign_headers_are_gone_on_with() -> None:
    """A record of Spring's retry topics keeps its attempt count and origin. The id is made from the group and the
    origin."""
    message = Message("payments-retry-1", b"m", None, spring(3), Source("payments-retry-1", 0, "5", 1))
    record = fail(message)
    state = read(record.headers)
    assert (state.attempt, state.original_topic) == (3, "payments")  # two failures before, one now
    assert (state.original_partition, state.original_offset) == (2, "99")
    assert state.original_timestamp_ms == state.first_failed_ms == 1_600_000_000_000
    assert state.id == retry_id("billing", "payments", 2, "99")
    assert record.header("kafka_original-topic") == b"payments"


def test_foreign_headers_without_a_place_get_the_place_of_their_record() -> None:
    """Two messages whose headers name only a topic must not share an id."""
    messages = [
        Message("r", b"m", None, (("REAL_TOPIC", b"payments"), ("RECONSUMETIMES", b"1")), Source("r", 0, offset))
        for offset in ("1", "2")
    ]
    states = [read(fail(message).headers) for message in messages]
    assert states[0].id != states[1].id
    assert {state.original_topic for state in states} == {"payments"}


def test_headers_that_a_handler_copied_onto_another_topic_are_not_its_own() -> None:
    """A handler copied a message with its headers to another topic. The copy counts as a new message
    with its own id."""
    record = fail(FRESH)
    copy = replace(record, topic="invoices", source=Source("invoices", 0, "1"))
    assert retry_state("billing", copy) == RetryState()
    state = read(fail(copy).headers)
    assert (state.attempt, state.original_topic, state.id) == (1, "invoices", retry_id("billing", "invoices", 0, "1"))


def test_another_groups_retry_on_the_common_topic_counts_on_under_its_own_id() -> None:
    """A retry of one group comes back on a topic that a second group reads, and fails there. It gets a new id, and its
    count continues. So two failing groups cannot retry a message for ever."""
    back = delivered(fail(FRESH), "orders", "78")
    state = retry_state("audit", back)
    assert (state.id, state.attempt) == (None, 1)
    again = read(fail(back, "audit").headers)
    assert (again.id, again.attempt) == (retry_id("audit", "orders", 0, "78"), 2)
    assert read(fail(back, "billing").headers).id == retry_id("billing", "orders", 3, "77")


def test_the_handler_sees_the_topic_of_the_first_failure() -> None:
    """On the group's redelivery topic the handler sees the original topic. On other topics it sees the topic that was
    read."""
    back = delivered(fail(FRESH), "billing.redelivery")
    assert delivered_message("billing", back, retry_state("billing", back)).topic == "orders"
    assert delivered_message("billing", FRESH, RetryState()) is FRESH
    stranger = Message("billing.redelivery", b"m", source=Source("billing.redelivery", 0, "1"))
    assert delivered_message("billing", stranger, retry_state("billing", stranger)).topic == "billing.redelivery"


def test_the_count_never_passes_its_ceiling() -> None:
    """The attempt count stays at its maximum, so that the signature over it is still valid."""
    headers = write((), RetryState(id="m", attempt=MAX_COUNT, original_topic="orders"))
    record = failed_message("billing", FRESH, read(headers), ERROR, secrets=(SECRET,))
    state = read(record.headers)
    assert state.attempt == MAX_COUNT
    assert verify(state, record, SECRET, "billing") is state


def test_a_failure_is_signed_with_the_first_secret() -> None:
    """A signature verifies with the first secret of the consumer and with no other one."""
    record = fail(FRESH, secrets=(SECRET, OTHER))
    state = read(record.headers)
    assert verify(state, record, SECRET, "billing") is state
    assert verify(state, record, OTHER, "billing") is not state


@pytest.mark.parametrize("signature", [None, "forged"])
@pytest.mark.parametrize("topic", ["billing.redelivery", "orders"])
def test_what_nobody_signed_is_not_signed_when_it_fails(signature: str | None, topic: str) -> None:
    """With a secret, an unsigned retry record counts as a first delivery. Its id comes from its content, not its
    headers."""
    forged = write((), RetryState(id="m", attempt=1, original_topic="orders", signature=signature))
    back = Message(topic, b"m", None, forged, Source(topic, 0, "1"))
    state = retry_state("billing", back, (SECRET,))
    assert (state.attempt, state.id, state.unsigned) == (0, content_id("billing", b"m", None), True)
    found = read(fail(back, secrets=(SECRET,)).headers)
    assert (found.id, found.attempt, found.signature) == (state.id, 1, None)


def test_a_redelivery_without_headers_is_nobodys() -> None:
    """On the redelivery topic, a record without signature counts as unsigned. On other topics it is an ordinary
    message."""
    bare = Message("billing.redelivery", b"m", None, (), Source("billing.redelivery", 0, "1"))
    assert retry_state("billing", bare, (SECRET,)).unsigned
    assert not retry_state("billing", FRESH, (SECRET,)).unsigned
    assert not retry_state("billing", bare).unsigned


def test_a_message_published_for_later_keeps_its_id_through_its_failures() -> None:
    """Each failure record has the message's id, its publishing time and the place of its first delivery. With a secret,
    the record is signed."""
    message = replace(published(FRESH, "daily", 1_000), source=FRESH.source)
    for secrets in ((), (SECRET,)):
        first = fail(message, secrets=secrets)
        second = fail(delivered(first, "billing.redelivery"), secrets=secrets)
        for record, attempt in ((first, 1), (second, 2)):
            state = read(record.headers)
            assert (state.id, state.published_ms, state.attempt) == ("daily", 1_000, attempt)
            assert (state.original_topic, state.original_partition, state.original_offset) == ("orders", 3, "77")
            assert verify(state, record, secrets, "billing").unsigned is not bool(secrets)


def test_a_message_published_at_once_keeps_its_id_through_its_failures() -> None:
    """All failures of the message have the id that `publish` returned. With a secret they are signed."""
    message = replace(published(FRESH, "pay-7"), source=FRESH.source)
    for secrets in ((), (SECRET,)):
        first = fail(message, secrets=secrets)
        second = fail(delivered(first, "billing.redelivery"), secrets=secrets)
        for record, attempt in ((first, 1), (second, 2)):
            state = read(record.headers)
            assert (state.id, state.published_ms, state.attempt) == ("pay-7", 1_700_000_000_000, attempt)
            assert verify(state, record, secrets, "billing").unsigned is not bool(secrets)


def test_of_a_message_that_nobody_has_signed_the_id_alone_is_believed() -> None:
    """The consumer uses only the id of an unsigned message's retry headers. The id in the store also depends on group,
    time and place. So a forged id cannot take the place of another message."""
    place = RetryState(id=retry_id("billing", "orders", 3, "7"), original_partition=3, original_offset="7")
    claims = replace(FRESH, headers=write((), replace(place, error_class="forged", max_attempts=9)))
    assert retry_state("billing", claims, (SECRET,)) == RetryState(id=place.id)
    state = read(fail(claims, secrets=(SECRET,)).headers)
    assert (state.id, state.attempt, state.original_offset) == (place.id, 1, "77")
    assert state.id_base != place.id  # so the record cannot take over another message's id in the store


def test_an_id_that_was_published_without_a_time_is_told_from_the_same_id_later() -> None:
    """If a message has an id and no publishing time, the time of its record is used instead."""
    message = replace(FRESH, headers=(("retry-id", b"daily"),))
    state = read(fail(message).headers)
    assert (state.id, state.published_ms, state.original_topic) == ("daily", 1_700_000_000_000, "orders")
    assert state.id_base != read(fail(message, group="audit").headers).id_base


def test_an_id_that_was_copied_onto_a_message_of_another_topic_is_not_its_own() -> None:
    """A handler forwarded a message with all headers to another topic. That message counts as new."""
    copy = replace(published(FRESH, "daily", 1_000), topic="invoices", source=Source("invoices", 0, "1"))
    assert retry_state("billing", copy) == RetryState()


def test_a_signed_redelivery_goes_on() -> None:
    """A redelivery that is signed with any of the secrets keeps its id."""
    back = Message("billing.redelivery", b"m", None, (), Source("billing.redelivery", 0, "1"))
    state = sign(RetryState(id="m", attempt=1, original_topic="orders", consumer_group="billing"), back, OTHER)
    back = replace(back, headers=write((), state))
    assert retry_state("billing", back, (SECRET, OTHER)).id == "m"


def test_a_failure_ends_the_replay_of_an_item() -> None:
    """The header with the replayed item belongs to one attempt. The record of that attempt's failure does not have
    it."""
    state = RetryState(id="m", replays=1, item_id="m.3")
    assert read(failed_message("billing", FRESH, state, ERROR).headers).item_id is None


def test_a_first_failure_in_the_future_counts_as_now() -> None:
    """A consumer with a fast clock cannot extend the time for which a message is retried."""
    now_ms = time.time_ns() // 1_000_000
    state = RetryState(id="m", attempt=1, first_failed_ms=now_ms + 3_600_000)
    first_ms = read(failed_message("billing", FRESH, state, ERROR).headers).first_failed_ms
    assert first_ms is not None
    assert now_ms <= first_ms < now_ms + 60_000


@pytest.mark.parametrize(
    ("raw", "past"), [(b"0", True), (b"1700000000000", True), (b"9" * 15, False), (b"9" * 17, False), (None, False)]
)
def test_expiry_is_a_time_in_the_past(raw: bytes | None, past: bool) -> None:
    """A message without expiry, or with an expiry far in the future or of too many digits, is not expired."""
    assert expired(raw) is past


def test_the_same_error_has_the_same_fingerprint() -> None:
    """Errors with different numbers in the message have one fingerprint. Another error class has another
    fingerprint."""
    prints = [failure_in(error)[1] for error in (ValueError("row 1"), ValueError("row 2"), KeyError("row 1"))]
    assert prints[0] == prints[1] != prints[2]
