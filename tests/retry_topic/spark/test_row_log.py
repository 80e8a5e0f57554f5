"""The rows of a Spark task as a log. It skips records that the store has, and reads again records that it lacks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retry_topic.brokers.protocol import LogBatch
from retry_topic.message import Message, Source
from retry_topic.spark.kafka.row_log import RowLog
from wheel_sched.errors import Rejected


def row(offset: int) -> Message:
    return Message("g.retry", b"%d" % offset, source=Source("g.retry", 0, str(offset)))


def offsets(part: LogBatch | None) -> list[int]:
    assert part is not None
    return [int(delivery.message.value) for delivery in part.deliveries]


class Topic:
    """A stand-in for a topic that has records at these offsets."""

    def __init__(self, *held: int) -> None:
        self.held = held
        self.asked: list[tuple[int, int]] = []

    def between(self, begin: int, end: int) -> Iterator[Message]:
        self.asked.append((begin, end))
        return (row(offset) for offset in self.held if begin <= offset < end)


def log(topic: Topic, rows: list[int], position: int | None) -> RowLog:
    return RowLog("s", map(row, rows), position, topic.between)


def test_rows_are_cut_into_slices_that_follow_each_other() -> None:
    """Each log batch begins where the previous one ends. Offsets without a record (transaction markers) do not
    matter."""
    topic = Topic()
    rows = log(topic, [3, 4, 7, 8, 9], 3)
    first, second, third = rows.poll(2), rows.poll(2), rows.poll(2)
    assert (offsets(first), offsets(second), offsets(third)) == ([3, 4], [7, 8], [9])
    assert first is not None
    assert second is not None
    assert [(part.expected, part.next) for part in (first, second)] == [(3, 5), (5, 9)]
    assert rows.poll(2) is None
    assert topic.asked == []


def test_what_the_store_has_is_passed_over() -> None:
    """Rows before the store's position are skipped, for example when an epoch runs again."""
    assert offsets(log(Topic(), [3, 4, 5, 6], 5).poll(10)) == [5, 6]
    assert log(Topic(), [3, 4], 5).poll(10) is None


def test_what_the_store_lacks_is_read_from_the_topic() -> None:
    """The rows begin after the store's position, because the store lost writes. The missing records are read again."""
    topic = Topic(1, 2, 3, 4)
    rows = log(topic, [4, 5], 2)
    assert offsets(rows.poll(10)) == [2, 3, 4, 5]
    assert topic.asked == [(2, 4)]


def test_without_a_position_it_begins_with_its_rows() -> None:
    """If the store has no position, the log begins with the first row."""
    part = log(Topic(1), [2, 3], None).poll(10)
    assert offsets(part) == [2, 3]
    assert part is not None
    assert part.expected is None


@pytest.mark.parametrize(("position", "then"), [(4, [4, 5, 6]), (6, [6]), (0, [0, 1, 2, 3, 4, 5, 6]), (9, None)])
def test_it_goes_on_from_where_the_store_says(position: int, then: list[int] | None) -> None:
    """After `rewind` the log continues at the given position, also in the middle of a log batch."""
    rows = log(Topic(0, 1, 2, 3, 4, 5, 6), [2, 3, 4, 5, 6], 2)
    assert offsets(rows.poll(2)) == [2, 3]
    rows.rewind("s", position)
    part = rows.poll(10)
    assert part is None if then is None else offsets(part) == then
    if part is not None:
        assert part.expected == position


def test_only_what_was_stored_is_counted() -> None:
    """`records` counts only the records of log batches that were stored."""
    rows = log(Topic(), [0, 1, 2], 0)
    part = rows.poll(2)
    assert part is not None
    rows.done(part)
    assert (rows.records, rows.position) == (2, 2)


def test_rows_out_of_order_are_refused() -> None:
    """Rows that are not ordered by offset are an error: the log would take them for records that the store has."""
    with pytest.raises(Rejected, match="by offset"):
        log(Topic(), [5, 4], 5).poll(10)
