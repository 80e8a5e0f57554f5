"""The offsets of a partition, and that its text tells a successor all it needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retry_topic.brokers.kafka.offset_tracker import MAX_TEXT, OffsetTracker, PartitionOffsets
from retry_topic.message import Message, Source

MESSAGE = Message("t", b"")


def admitted(partition: PartitionOffsets, *offsets: int) -> list[int | None]:
    """How often each was handed out now, None = it was settled."""
    entries = [partition.admit(offset, MESSAGE, 0) for offset in offsets]
    return [None if entry is None else entry.deliveries for entry in entries]


def test_the_committed_offset_is_the_first_that_is_not_settled() -> None:
    """Settling out of order moves it only when the front is settled; gaps of the log are no obstacle."""
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
    """What was settled behind the offset does not come again, what was in hand comes with its count raised."""
    offsets = PartitionOffsets(0)
    admitted(offsets, 0, 1, 2, 3)
    offsets.settle(1)
    offsets.settle(3)
    successor = PartitionOffsets(*offsets.to_commit())
    assert admitted(successor, 0, 1, 2, 3, 4) == [2, None, 2, None, 1]


def test_what_is_given_back_in_good_order_is_not_counted() -> None:
    """A rebalance is not the record's fault."""
    offsets = PartitionOffsets(0)
    admitted(offsets, 0, 1)
    offsets.settle(1)
    successor = PartitionOffsets(*offsets.to_commit(counted=False))
    assert admitted(successor, 0, 1) == [1, None]


def test_settling_can_be_taken_back() -> None:
    """The transaction it was part of was aborted."""
    offsets = PartitionOffsets(0)
    admitted(offsets, 0)
    assert offsets.settle(0)
    assert not offsets.settle(0)
    offsets.unsettle(0)
    assert offsets.to_commit()[0] == 0


def test_foreign_texts_and_cut_ones_cost_repeats_only() -> None:
    """Whatever stands beside the offset, records come."""
    for text in ("", "somebody else's", "w1:", "w1:x.y,", "w1:3.0"):
        assert admitted(PartitionOffsets(0, text), 0)[0] in (1, None)
    assert admitted(PartitionOffsets(0, "somebody else's 3.0"), 0) == [1]


def test_a_text_is_never_longer_than_a_broker_takes() -> None:
    """Every other record settled makes the longest; what does not fit is handed out again."""
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
    """Over two successors: what is settled never comes again, all else does, each time with its count raised."""
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
    """Records leave it when they are handed out, when their partition is lost, and when a new life begins."""
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
