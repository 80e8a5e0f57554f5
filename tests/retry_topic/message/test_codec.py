"""Retry headers: they are read back exactly as written, have limits, and any bytes can be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retry_topic.message import Headers
from retry_topic.message.headers import (
    HEADER_NAMES,
    MAX_COUNT,
    MAX_TOTAL_BYTES,
    HeaderRewriter,
    RetryState,
    read,
    write,
)
from retry_topic.message.headers.state import FIELDS, LAST_MS, Dialect
from wheel_sched.duration import LONGEST_MS

PRINTABLE = st.characters(codec="utf-8").filter(str.isprintable)
LABELS = st.none() | st.text(PRINTABLE, min_size=1, max_size=40)
TIMES = st.none() | st.integers(0, LAST_MS)
DELAYS = st.none() | st.integers(0, LONGEST_MS)
COUNTS = st.integers(0, MAX_COUNT)
CLASS_NAMES = st.from_regex(r"\A[a-z]{1,9}\.[A-Z][a-z]{0,9}\Z")

STATES = st.builds(
    RetryState,
    id=LABELS,
    attempt=COUNTS,
    max_attempts=st.none() | st.integers(1, MAX_COUNT),
    first_failed_ms=TIMES,
    last_failed_ms=TIMES,
    due_ms=TIMES,
    policy=LABELS,
    delay_ms=DELAYS,
    verdict=st.sampled_from([None, "retry", "dead"]),
    retry_after_ms=DELAYS,
    original_topic=LABELS,
    original_partition=st.none() | st.integers(0, 2**31 - 1),
    original_offset=LABELS,
    original_timestamp_ms=TIMES,
    consumer_group=LABELS,
    error_class=st.none() | CLASS_NAMES,
    error_mro=st.lists(CLASS_NAMES, max_size=6).map(tuple),
    error_message=st.none() | st.text(st.characters(codec="utf-8"), max_size=200),
    error_fingerprint=LABELS,
    error_status=st.none() | st.integers(100, 599),
    replays=COUNTS,
    item_id=LABELS,
    signature=LABELS,
    process=LABELS,
    failed_attempts=st.none() | st.text(st.characters(codec="utf-8"), max_size=200),
    traceback=st.none() | st.text(st.characters(codec="utf-8"), max_size=200),
)
OTHERS = st.lists(st.tuples(st.sampled_from(["traceparent", "a", "retry"]), st.binary(max_size=20)), max_size=5).map(
    tuple
)


@pytest.mark.slow
@settings(deadline=None)
@given(OTHERS, STATES)
def test_what_is_written_is_read_back(others: Headers, state: RetryState) -> None:
    """Every state within the limits is read back equal and without oddities."""
    found = read(write(others, state))
    assert found == state
    assert found.oddities == ()
    assert found.dialect == "own"


FOREIGN_NAMES = [
    *("retry_topic-attempts", "retry_topic-original-timestamp", "retry_topic-backoff-timestamp"),
    *("kafka_original-topic", "kafka_original-partition", "kafka_original-offset", "kafka_dlt-original-topic"),
    *("kafka_exception-fqcn", "kafka_exception-message", "delayed-retry-count", "delayed-retry-partition"),
    *("RECONSUMETIMES", "REAL_TOPIC", "DELAY_TIME", "ORIGIN_MESSAGE_ID"),
]
ANY_NAME = st.sampled_from([*sorted(HEADER_NAMES), *FOREIGN_NAMES]) | st.text(max_size=10)
NUMBERS = st.integers(-(2**80), 2**80).map(lambda number: b"%d" % number)
ANY_HEADERS = st.lists(st.tuples(ANY_NAME, st.binary(max_size=1_500) | NUMBERS), max_size=15).map(tuple)


@settings(deadline=None)
@given(ANY_HEADERS)
def test_no_headers_whatever_raise_or_leave_the_bounds(headers: Headers) -> None:
    """Any headers give a valid state. The state is equal when it is written and read again."""
    state = read(headers)
    assert 0 <= state.attempt <= MAX_COUNT
    assert 0 <= state.replays <= MAX_COUNT
    assert read(write(headers, state)) == state


def bytes_of(headers: Iterable[tuple[str, bytes]]) -> int:
    """The size of retry headers, without those that have bounds of their own."""
    extra = {field.header for field in FIELDS.values() if field.extra}
    return sum(len(name) + len(data) for name, data in headers if name not in extra)


SHARED = ("policy", "max_attempts", "error_fingerprint", "original_topic")
OWN = ("due_ms", "delay_ms", "signature")
WRITTEN = st.tuples(OTHERS, STATES).map(lambda both: write(*both))


@pytest.mark.slow
@settings(deadline=None)
@given(ANY_HEADERS | WRITTEN, STATES)
def test_what_is_written_again_reads_as_if_all_were_written(headers: Headers, changed: RetryState) -> None:
    """`HeaderRewriter` replaces some headers with the same result as `write`, even over malformed or repeated headers.

    Other headers stay, and the retry headers stay within their limits.
    """
    state = read(headers)
    shared, own = (tuple(getattr(changed, name) for name in names) for names in (SHARED, OWN))
    restated = HeaderRewriter(SHARED, OWN)(headers, state, shared, own)
    changes = {name: getattr(changed, name) for name in (*SHARED, *OWN)}
    assert read(restated) == read(write(headers, replace(state, **changes)))
    ours = [(name, data) for name, data in restated if name in HEADER_NAMES]
    assert len(ours) == len({name for name, _ in ours})
    assert bytes_of(ours) <= MAX_TOTAL_BYTES
    others = [pair for pair in headers if pair[0] not in HEADER_NAMES]
    assert [pair for pair in restated if pair[0] not in HEADER_NAMES] == others


def test_what_stays_keeps_its_bytes() -> None:
    """`HeaderRewriter` does not rewrite a header that has not changed, for example a number with a leading zero."""
    headers = (("a", b"1"), ("retry-attempt", b"02"), ("retry-due-at", b"5"), ("b", b"2"))
    restated = HeaderRewriter(("policy",), ("due_ms",))(headers, read(headers), ("p@1",), (7,))
    assert restated == (
        ("a", b"1"),
        ("retry-attempt", b"02"),
        ("b", b"2"),
        ("retry-policy", b"p@1"),
        ("retry-due-at", b"7"),
    )


def test_a_header_that_is_there_twice_is_odd() -> None:
    """A repeated retry header is reported as an oddity. The last value counts, even if it is malformed."""
    state = read((("retry-attempt", b"7"), ("retry-attempt", b"2")))
    assert (state.attempt, state.oddities) == (2, ("retry-attempt: is there twice, the last counts",))
    broken = read((("retry-id", b"a"), ("retry-id", b"\xff")))
    assert (broken.id, len(broken.oddities)) == (None, 2)


WILD_TEXT = st.none() | st.text(max_size=3) | st.text(min_size=240, max_size=2_000)


@settings(deadline=None)
@given(
    st.builds(
        RetryState,
        *[st.just("x")],
        attempt=st.integers(),
        error_message=WILD_TEXT,
        original_topic=WILD_TEXT,
        policy=WILD_TEXT,
        consumer_group=WILD_TEXT,
        item_id=WILD_TEXT,
        original_offset=WILD_TEXT,
        error_fingerprint=WILD_TEXT,
        error_class=WILD_TEXT,
        error_mro=st.lists(st.text(max_size=300), max_size=9).map(tuple),
        signature=WILD_TEXT,
        failed_attempts=st.none() | st.text(max_size=9) | st.text(min_size=600, max_size=2_500),
        traceback=st.none() | st.text(max_size=9) | st.text(min_size=1_300, max_size=5_000),
    )
)
def test_no_state_whatever_writes_over_the_bounds(state: RetryState) -> None:
    """Each written value and the sum of all stay within their limits. Reading and writing them again
    changes nothing."""
    written = write((), state)
    for name, data in written:
        field = next(field for field in FIELDS.values() if field.header == name)
        assert len(data) <= field.max_bytes
    assert bytes_of(written) <= MAX_TOTAL_BYTES
    assert write((), read(written)) == written


def test_the_fullest_state_gives_up_only_its_message() -> None:
    """If all fields together are too large, the error message is cut, and nothing else is lost."""
    full: dict[str, Any] = {
        name: "x" * min(250, field.max_bytes)
        for name, field in FIELDS.items()
        if field.kind in ("label", "prose") and field.pattern is None
    }
    state = replace(
        RetryState(**full),
        error_message="m" * 1_000,
        error_mro=("p" * 249, "q" * 250),
        first_failed_ms=LAST_MS,
        last_failed_ms=LAST_MS,
        due_ms=LAST_MS,
        original_timestamp_ms=LAST_MS,
        delay_ms=LONGEST_MS,
        verdict="retry",
        retry_after_ms=LONGEST_MS,
        max_attempts=MAX_COUNT,
        attempt=MAX_COUNT,
        replays=MAX_COUNT,
        error_status=500,
        original_partition=2**31 - 1,
    )
    found = read(write((), state))
    assert found.error_message is not None
    assert 0 < len(found.error_message) < 1_000
    assert replace(found, error_message=state.error_message) == state


def test_other_headers_stay_untouched_and_in_order() -> None:
    """`write` replaces all retry headers. Other headers stay, even repeated ones."""
    before: Headers = (("b", b"1"), ("retry-attempt", b"3"), ("a", b"2"), ("b", b"3"), ("retry-attempt", b"4"))
    after = write(before, RetryState(attempt=5))
    assert after == (("b", b"1"), ("a", b"2"), ("b", b"3"), ("retry-attempt", b"5"), ("retry-replays", b"0"))


def test_the_last_of_equal_headers_wins() -> None:
    """As everywhere in Kafka, a later header overrides an earlier header with the same name."""
    assert read((("retry-attempt", b"3"), ("retry-attempt", b"4"))).attempt == 4


def test_headers_do_not_grow_from_hop_to_hop() -> None:
    """After a thousand failures a message has as many headers as after one."""
    headers: Headers = (("traceparent", b"00-1"),)
    for attempt in range(1, 1_001):
        headers = write(headers, replace(read(headers), attempt=attempt, error_message="boom"))
    assert len(headers) == 4


@pytest.mark.parametrize(
    ("data", "attempt"),
    [
        (b"-1", 0),
        (b"1000000000", MAX_COUNT),
        (b"9" * 19, MAX_COUNT),
        (b"9" * 5_000, MAX_COUNT),
        (b"three", 0),
        (b"", 0),
        (b"1_0", 0),
        (b" 7", 0),
        (b"7.0", 0),
        ("٣".encode(), 0),
        (b"\xff\xfe", 0),
    ],
)
def test_broken_attempts_are_reported_and_raise_no_limit(data: bytes, attempt: int) -> None:
    """Too large a count becomes the maximum, and an invalid one counts as absent. Both are reported."""
    state = read((("retry-attempt", data),))
    assert state.attempt == attempt
    assert len(state.oddities) == 1
    assert state.oddities[0].startswith("retry-attempt: ")


def test_a_broken_first_failure_falls_back_to_the_messages_own_time() -> None:
    """If the time of the first failure is invalid, the message's own time is used, so that its age does not start
    again."""
    state = read((("retry-first-failed-at", b"soon"), ("retry-original-timestamp", b"1234")))
    assert state.first_failed_ms == 1_234
    assert len(state.oddities) == 1


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("retry-id", b"x" * 251),
        ("retry-id", b"a\nb"),
        ("retry-id", b""),
        ("retry-original-topic", b"\xff"),
        ("retry-verdict", b"maybe"),
        ("retry-max", b"0"),
        ("retry-error-status", b"42"),
        ("retry-original-partition", b"2147483648"),
        ("retry-due-at", b"-5"),
    ],
)
def test_a_broken_label_or_number_is_ignored_and_reported(name: str, data: bytes) -> None:
    """A value that is too long or invalid counts as absent. A shortened id would name another message."""
    state = read(((name, data),))
    assert state == RetryState()
    assert state.oddities[0].startswith(f"{name}: ")


def test_over_long_prose_is_cut_at_a_whole_character() -> None:
    """At most 1,000 bytes of the error message are kept, and no character is cut in two."""
    state = read((("retry-error-message", ("é" * 5_000).encode()),))
    assert state.error_message == "é" * 500
    assert state.oddities == ("retry-error-message: cut to its bound",)


def test_parents_are_cut_at_whole_names() -> None:
    """Half a class name could match a wrong rule, so a list of parent classes is cut between names."""
    names = tuple(f"package.module.Class{number:03d}" for number in range(100))
    found = read(write((), RetryState(error_mro=names))).error_mro
    assert 0 < len(found) < 100
    assert found == names[: len(found)]


def test_an_over_long_retry_after_is_clamped() -> None:
    """Too long a wait becomes the longest allowed wait."""
    assert read((("retry-after", b"9" * 18),)).retry_after_ms == LONGEST_MS


@pytest.mark.parametrize("dialect", ["none", "spring"])
def test_where_a_state_was_read_does_not_make_it_another(dialect: Dialect) -> None:
    """Two states are equal even if their oddities (remarks about malformed headers) or their dialects (whose headers
    were read) differ."""
    assert RetryState(attempt=1, dialect=dialect, oddities=("x",)) == RetryState(attempt=1)


def test_a_message_without_retry_headers_is_fresh() -> None:
    """Headers without a retry header give the default state."""
    state = read((("traceparent", b"1"), ("retry", b"5")))
    assert state == RetryState()
    assert state.dialect == "none"
