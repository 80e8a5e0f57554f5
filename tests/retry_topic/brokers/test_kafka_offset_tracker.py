"""The offset tracker: records in flight, settled records, and what the next owner of a partition learns of both.

These tests need neither Kafka nor threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retry_topic.brokers.kafka.offset_tracker import MAX_TEXT, OffsetTracker, PartitionOffsets
from retry_topic.brokers.protocol import Delivery
from retry_topic.message import Message, Source

MESSAGE = Message("t", b"")


def admitted(partition: PartitionOffsets, *offsets: int) -> list[int | None]:
    """The delivery count of each record, or None if the record is settled."""
    entries = [partition.admit(offset, MESSAGE, 0) for offset in offsets]
    return [None if entry is None else entry.deliveries for entry in entries]


def test_the_committed_offset_is_the_first_that_is_not_settled() -> None:
    """A record settled out of order does not move the offset. Missing offsets in the log do not matter."""
    offsets = PartitionOffsets(5)
    assert admitted(offsets, 5, 6, 9) == [1, 1, 1]
    assert offsets.to_commit() == (5, "w1:5.2,")
    offsets.settle(6)
    assert offsets.to_commit()[0] == 5
    offsets.settle(5)
    assert offsets.to_commit()[0] == 9
    offsets.settle(9)
    assert offsets.to_commit() == (10, "")


def test_a_successor_knows_what_was_settled_and_what_was_handed_out() -> None:
    """The next owner of the partition does not get settled records again. Records in flight get a higher delivery
    count."""
    offsets = PartitionOffsets(0)
    admitted(offsets, 0, 1, 2, 3)
    offsets.settle(1)
    offsets.settle(3)
    successor = PartitionOffsets(*offsets.to_commit())
    assert admitted(successor, 0, 1, 2, 3, 4) == [2, None, 2, None, 1]


def test_what_is_given_back_in_good_order_is_not_counted() -> None:
    """If a member gives a partition back in a rebalance, the delivery counts of its records do not rise."""
    offsets = PartitionOffsets(0)
    admitted(offsets, 0, 1)
    offsets.settle(1)
    successor = PartitionOffsets(*offsets.to_commit(counted=False))
    assert admitted(successor, 0, 1) == [1, None]


def test_settling_can_be_taken_back() -> None:
    """A record whose transaction was aborted is unsettled again."""
    offsets = PartitionOffsets(0)
    admitted(offsets, 0)
    assert offsets.settle(0)
    assert not offsets.settle(0)
    offsets.unsettle(0)
    assert offsets.to_commit()[0] == 0


def test_foreign_texts_and_cut_ones_cost_repeats_only() -> None:
    """The tracker accepts any metadata of an offset. With bad metadata, records may be repeated, but none is lost."""
    for text in ("", "somebody else's", "w1:", "w1:x.y,", "w1:3.0"):
        assert admitted(PartitionOffsets(0, text), 0)[0] in (1, None)
    assert admitted(PartitionOffsets(0, "somebody else's 3.0"), 0) == [1]


def test_a_text_is_never_longer_than_a_broker_takes() -> None:
    """Every second record is settled, which needs the longest metadata. The metadata does not exceed the broker's
    limit. A settled record for which it has no room is delivered again."""
    offsets = PartitionOffsets(0)
    admitted(offsets, *range(4_000))
    for offset in range(1, 4_000, 2):
        offsets.settle(offset)
    offset, text = offsets.to_commit()
    assert (offset, len(text) <= MAX_TEXT) == (0, True)
    assert admitted(PartitionOffsets(offset, text), 0, 1, 3_999) == [2, None, 1]


@given(
    gaps=st.lists(st.integers(1, 3), min_size=1, max_size=30),
    settled=st.sets(st.integers(0, 29)),
    seen=st.integers(0, 30),
    again=st.sets(st.integers(0, 29)),
)
def test_no_handing_over_loses_or_repeats_a_record(
    gaps: list[int], settled: set[int], seen: int, again: set[int]
) -> None:
    """The partition changes its owner twice. A new owner gets all unsettled records and no settled one. The delivery
    count of a record is the number of owners that handed it out."""
    offsets = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    first = PartitionOffsets(0)
    admitted(first, *offsets)
    done = {offset for n, offset in enumerate(offsets) if n in settled}
    for offset in done:
        first.settle(offset)
    second = PartitionOffsets(*first.to_commit())
    rest = [offset for offset in offsets if offset >= second.position]
    looked, later = rest[:seen], rest[seen:]
    assert admitted(second, *looked) == [None if offset in done else 2 for offset in looked]
    more = {offset for n, offset in enumerate(looked) if n in again} - done
    for offset in more:
        second.settle(offset)
    third = PartitionOffsets(*second.to_commit())
    counts = dict.fromkeys(looked, 3) | dict.fromkeys(later, 2)
    left = [offset for offset in rest if offset >= third.position]
    assert {*rest} - {*left} <= done | more
    assert admitted(third, *left) == [None if offset in done | more else counts[offset] for offset in left]


def test_the_tracker_knows_how_many_bytes_its_buffer_holds() -> None:
    """Records leave the buffer when they are handed out, when their partition is lost, and when the
    member joins the group again."""
    tracker = OffsetTracker(1_000, lambda: 0)
    for partition in (0, 1):
        tracker.open(("t", partition), 0, "")
        for offset in range(10):
            tracker.fetch(offset, Message("t", bytes(1_000), b"k", (("h", b"1"),), Source("t", partition, str(offset))))
    full = tracker.fetched_bytes
    assert 20_000 < full < 25_000
    tracker.take(10)
    assert tracker.fetched_bytes == full // 2
    tracker.drop([("t", 0)])
    tracker.take(20)
    assert (tracker.fetched, tracker.fetched_bytes) == (0, 0)
    tracker.fetch(10, Message("t", b"v", None, (), Source("t", 1, "10")))
    tracker.begin()
    assert (tracker.fetched, tracker.fetched_bytes) == (0, 0)


class Clock:
    """A clock in milliseconds that only the test advances."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tracker(clock: Clock) -> OffsetTracker:
    """The tracker of a member that has partition 0 of topic `t`, from offset 0 on."""
    tracker = OffsetTracker(1_000, clock)
    tracker.begin()
    tracker.open(("t", 0), 0, "")
    return tracker


def fetched(tracker: OffsetTracker, *offsets: int, partition: int = 0) -> None:
    for offset in offsets:
        tracker.fetch(offset, Message("t", b"v", None, (), Source("t", partition, str(offset))))


def offsets_of(deliveries: Sequence[Delivery]) -> list[tuple[int, int, int]]:
    """Partition, offset and delivery count of each delivery."""
    return [(one.handle[2], one.handle[3], one.deliveries) for one in deliveries]


def settle(tracker: OffsetTracker, *deliveries: Delivery) -> None:
    for delivery in deliveries:
        held = tracker.held(delivery)
        assert held is not None
        held.settled = True


def committed(tracker: OffsetTracker, partition: int = 0) -> int:
    (place,) = tracker.to_commit([("t", partition)])
    return place.offset


def test_records_settled_out_of_order_move_the_offset_once_the_first_one_is_settled(tracker: OffsetTracker) -> None:
    """The committed offset is that of the first unsettled record. Missing offsets in the log (transaction markers,
    compaction) do not matter."""
    fetched(tracker, 0, 1, 5, 9)
    first, second, third, fourth = tracker.take(10)
    settle(tracker, fourth, second)
    assert committed(tracker) == 0
    settle(tracker, first)
    assert committed(tracker) == 5
    tracker.forget_settled([("t", 0)])
    assert (tracker.held(first), tracker.held(second)) == (None, None)
    settle(tracker, third)
    assert committed(tracker) == 10


def test_a_record_that_was_silent_for_too_long_comes_before_new_ones(tracker: OffsetTracker, clock: Clock) -> None:
    """A record without a heartbeat for 1,000 ms is handed out again with a higher count. A settled record is not."""
    fetched(tracker, 0, 1, 2)
    silent, done = tracker.take(2)
    settle(tracker, done)
    clock.ms = 999
    assert tracker.lapse_in_s() == pytest.approx(0.001)
    clock.ms = 1_000
    assert offsets_of(tracker.take(10)) == [(0, 0, 2), (0, 2, 1)]
    assert tracker.held(silent) is not None


def test_what_was_not_handed_out_after_all_comes_at_once_and_is_not_counted(tracker: OffsetTracker) -> None:
    """If the commit before handing out failed, the next `take` returns the record with the same count."""
    fetched(tracker, 0)
    taken = tracker.take(1)
    tracker.give_back(taken)
    assert offsets_of(tracker.take(1)) == [(0, 0, 1)]


def test_a_record_that_did_not_reach_the_caller_is_not_settled_for_the_successor(tracker: OffsetTracker) -> None:
    """A member loses its partition before a record reaches the caller. The next owner gets the record, with the same
    count."""
    fetched(tracker, 0, 1)
    tracker.give_back(tracker.take(2))
    (place,) = tracker.to_commit([("t", 0)], counted=False)
    assert admitted(PartitionOffsets(place.offset, place.metadata or ""), 0, 1) == [1, 1]


def test_deliveries_of_a_revoked_partition_are_dead(tracker: OffsetTracker) -> None:
    """The tracker drops the records of the revoked partition and commits nothing for it. Other partitions continue."""
    tracker.open(("t", 1), 0, "")
    fetched(tracker, 0, 1)
    fetched(tracker, 0, 1, partition=1)
    taken = {one.handle[2]: one for one in tracker.take(2)}
    tracker.drop([("t", 0)])
    assert (tracker.held(taken[0]), tracker.to_commit([("t", 0)])) == (None, [])
    assert tracker.held(taken[1]) is not None
    assert offsets_of(tracker.take(10)) == [(1, 1, 1)]
    fetched(tracker, 2)  # a record that librdkafka delivers late
    assert tracker.take(10) == []


def test_a_partition_that_comes_again_has_another_assignment(tracker: OffsetTracker) -> None:
    """A delivery of the earlier assignment settles no record of the later assignment, although the offset is equal."""
    fetched(tracker, 0)
    (early,) = tracker.take(1)
    (place,) = tracker.to_commit([("t", 0)])
    tracker.drop([("t", 0)])
    tracker.open(("t", 0), place.offset, place.metadata)
    fetched(tracker, 0)
    (late,) = tracker.take(1)
    assert (early.handle[0] != late.handle[0], tracker.held(early), late.deliveries) == (True, None, 2)
    tracker.begin()
    assert (tracker.held(late), tracker.busy) == (None, False)


def test_a_record_that_was_settled_before_a_reassignment_is_not_handed_out_again(tracker: OffsetTracker) -> None:
    """A record was settled while an earlier record was not. So only the metadata of the committed offset says that it
    is settled."""
    fetched(tracker, 0, 1, 2)
    _, second, _ = tracker.take(3)
    settle(tracker, second)
    (place,) = tracker.to_commit([("t", 0)], counted=False)
    tracker.drop([("t", 0)])
    tracker.open(("t", 0), place.offset, place.metadata)
    fetched(tracker, 0, 1, 2)
    assert offsets_of(tracker.take(10)) == [(0, 0, 1), (0, 2, 1)]


def test_settling_twice_changes_nothing(tracker: OffsetTracker) -> None:
    """A second settling of a record does not change the committed offset. After that, the tracker can forget the
    record."""
    fetched(tracker, 0)
    (one,) = tracker.take(1)
    settle(tracker, one)
    settle(tracker, one)
    assert committed(tracker) == 1
    tracker.forget_settled([("t", 0)])
    assert (tracker.held(one), tracker.to_commit([("t", 0)])) == (None, [])


def test_partitions_take_turns(tracker: OffsetTracker) -> None:
    """A partition with many records does not keep another one waiting."""
    tracker.open(("t", 1), 0, "")
    fetched(tracker, *range(100))
    fetched(tracker, 0, partition=1)
    assert (1, 0, 1) in offsets_of(tracker.take(10))
