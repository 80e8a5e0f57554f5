"""Reading the retry headers of Spring, SmallRye and Pulsar."""

from __future__ import annotations

from retry_topic.message import Headers
from retry_topic.message.headers import MAX_COUNT, read

TIME_MS = 1_700_000_000_000


def big_integer(number: int) -> bytes:
    """Encode a number as Java's BigInteger.toByteArray() does: two's complement in the fewest bytes."""
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


SPRING: Headers = (
    ("retry_topic-attempts", (3).to_bytes(4, "big")),
    ("retry_topic-original-timestamp", big_integer(TIME_MS)),
    ("retry_topic-backoff-timestamp", big_integer(TIME_MS + 5_000)),
    ("kafka_original-topic", b"orders"),
    ("kafka_original-partition", (7).to_bytes(4, "big")),
    ("kafka_original-offset", (123_456).to_bytes(8, "big")),
    ("kafka_original-timestamp", (TIME_MS - 9).to_bytes(8, "big")),
    ("kafka_dlt-original-consumer-group", b"billing"),
    ("kafka_exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ("kafka_exception-cause-fqcn", b"java.net.SocketTimeoutException"),
    ("kafka_exception-message", b"Listener failed"),
)


def test_springs_retry_topic_headers_are_read() -> None:
    """Spring's header has the number of the next attempt: 3 means two failures. The cause of the exception becomes the
    error class, and the exception around it becomes a parent class."""
    state = read(SPRING)
    assert (state.dialect, state.attempt, state.due_ms) == ("spring", 2, TIME_MS + 5_000)
    assert (state.first_failed_ms, state.original_timestamp_ms) == (TIME_MS, TIME_MS)
    assert (state.original_topic, state.original_partition, state.original_offset) == ("orders", 7, "123456")
    assert (state.consumer_group, state.error_class) == ("billing", "java.net.SocketTimeoutException")
    assert state.error_mro == ("org.springframework.kafka.listener.ListenerExecutionFailedException",)
    assert (state.error_message, state.oddities) == ("Listener failed", ())


def test_springs_early_one_byte_count_is_read() -> None:
    """The attempt is read from one byte too, as Spring before 2.8 wrote it."""
    assert read((("retry_topic-attempts", b"\x04"),)).attempt == 3


def test_springs_classic_dead_letter_headers_are_read() -> None:
    """A record of a dead-letter topic without an attempt count counts as failed once."""
    state = read(
        (
            ("kafka_dlt-original-topic", b"orders"),
            ("kafka_dlt-original-partition", (2).to_bytes(4, "big")),
            ("kafka_dlt-original-offset", (9).to_bytes(8, "big")),
            ("kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"),
            ("kafka_dlt-exception-message", b"no"),
        )
    )
    assert (state.attempt, state.original_topic, state.original_partition, state.original_offset) == (
        1,
        "orders",
        2,
        "9",
    )
    assert (state.error_class, state.error_message) == ("java.lang.IllegalStateException", "no")


def test_broken_spring_numbers_are_reported_and_count_as_one_failure() -> None:
    """A count of wrong size or below zero counts as one failure. Too large a count becomes the maximum."""
    nine_bytes = read((("retry_topic-attempts", b"123456789"),))
    assert (nine_bytes.attempt, len(nine_bytes.oddities)) == (1, 1)
    negative = read((("retry_topic-attempts", b"\xff\xff\xff\xff"),))
    assert (negative.attempt, len(negative.oddities)) == (1, 1)
    huge = read((("retry_topic-attempts", b"\x7f\xff\xff\xff"),))
    assert (huge.attempt, len(huge.oddities)) == (MAX_COUNT, 1)


def test_smallryes_headers_are_read() -> None:
    """SmallRye's count 0 means one failure. Origin, times and error are read from its other headers."""
    state = read(
        (
            ("delayed-retry-count", b"0"),
            ("delayed-retry-original-timestamp", b"1000"),
            ("delayed-retry-first-processing-timestamp", b"2000"),
            ("delayed-retry-topic", b"orders"),
            ("delayed-retry-partition", b"3"),
            ("delayed-retry-offset", b"42"),
            ("delayed-retry-exception-class-name", b"java.lang.IllegalArgumentException"),
            ("delayed-retry-reason", b"nack 3"),
        )
    )
    assert (state.dialect, state.attempt) == ("smallrye", 1)
    assert (state.first_failed_ms, state.original_timestamp_ms) == (2_000, 1_000)
    assert (state.original_topic, state.original_partition, state.original_offset) == ("orders", 3, "42")
    assert (state.error_class, state.error_message) == ("java.lang.IllegalArgumentException", "nack 3")


def test_smallryes_count_leaves_out_the_first_failure() -> None:
    """SmallRye's count 2 means two retries, so three failures."""
    assert read((("delayed-retry-count", b"2"),)).attempt == 3


def test_a_huge_smallrye_count_stays_within_the_ceiling() -> None:
    """Too large a count becomes the maximum, although one failure is added."""
    assert read((("delayed-retry-count", b"99999999"),)).attempt == MAX_COUNT


def test_pulsars_properties_are_read() -> None:
    """Pulsar's property RECONSUMETIMES is read as the number of failures."""
    state = read(
        (
            ("RECONSUMETIMES", b"4"),
            ("DELAY_TIME", b"5000"),
            ("REAL_TOPIC", b"persistent://public/default/orders"),
            ("ORIGIN_MESSAGE_ID", b"12:34:-1"),
        )
    )
    assert (state.dialect, state.attempt, state.delay_ms) == ("pulsar", 4, 5_000)
    assert (state.original_topic, state.original_offset) == ("persistent://public/default/orders", "12:34:-1")


def test_our_own_headers_win_over_foreign_ones() -> None:
    """If a record has both `retry-` headers and Spring's, the `retry-` headers hold."""
    state = read((*SPRING, ("retry-attempt", b"6")))
    assert (state.dialect, state.attempt, state.original_topic) == ("own", 6, None)
